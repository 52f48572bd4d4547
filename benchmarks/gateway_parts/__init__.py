"""Parts of the gateway's benchmark: servers, client and cases."""
