"""What trained models write, and what they think of what others wrote.

Contents:

    decoding     ids after prompts, by one program for prompts of any lengths
    texts        the same for texts
    scoring      the log-probability of given texts
    answers      how near what was written is to what was wanted
"""
