"""What a plan is made of: the answers, the settings with their reasons, msprobe's files, the texts and the costs."""
