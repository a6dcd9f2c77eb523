"""The declarations of the compiled modules (types, tiles, records), and which modules are present."""
