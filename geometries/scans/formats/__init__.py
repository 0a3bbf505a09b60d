"""The formats that `load_scan` reads, one a file; what they share is in `contents`."""
