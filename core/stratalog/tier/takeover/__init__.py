"""Take over, download and archive whole logs."""
