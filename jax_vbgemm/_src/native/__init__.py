"""What the compiled modules declare (types, tiles, records), and which of them are there."""
