"""What a comparison found: terminal, HTML page, JSON Lines, CSV, JUnit XML, and folders for msprobe's viewer."""
