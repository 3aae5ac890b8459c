"""Inference: generation and scoring of texts by trained models.

Contents:

    decoder            generated ids after prompts
    results            what a decoder returns and raises
    text_generation    the same for texts
    sample             one generated text, as a training run shows it
    scoring            the log-probability of given texts
    answer_metrics     exact match and F1 of generated answers
"""
