"""The admin in a real browser, with real workers behind it."""
