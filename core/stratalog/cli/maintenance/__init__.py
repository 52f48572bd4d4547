"""Commands that check, repair, clean and run log directories."""
