"""What trained models write, and what they think of what others wrote.

Contents:

    decoder            ids after prompts, by one program for prompts of any lengths
    text_generation    the same for texts
    sample             one text, as a training run shows it
    scoring            the log-probability of given texts
    answer_metrics     how near what was written is to what was wanted
"""
