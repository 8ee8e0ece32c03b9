"""Plan a collection run (files and flags), and check one (rules) before it costs a card."""
