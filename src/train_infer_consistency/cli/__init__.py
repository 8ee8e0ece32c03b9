"""The command ``consistency``: one module per verb, nothing else."""
