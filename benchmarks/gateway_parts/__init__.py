"""Parts of the gateway's benchmark: the servers, the client, and what each case does."""
