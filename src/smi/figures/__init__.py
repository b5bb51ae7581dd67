"""Draw the paper's figures from the folders of runs, with one file per figure."""
