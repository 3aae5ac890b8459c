"""What trained models generate, and how they score texts.

Contents:

    decoder            ids after prompts, by one program for prompts of any lengths
    prompts            prompts as arrays of ids, and their errors
    text_generation    texts after prompts
    sample             one text, as a training run prints it
    scoring            the log-probability of texts
    answer_metrics     exact match and F1 of generated answers
"""
