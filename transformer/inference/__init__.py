"""Generation and scoring of texts by trained models.

Contents:

    decoder            generates ids after prompts, by greedy decoding, sampling or beam search
    padded_lengths     the padded lengths of a decoder's arrays
    trained_model      a trained model, as generation takes it
    prompts            prompts as arrays of ids, and their errors
    text_generation    generates texts after prompts
    sample             generates the text that a training run prints
    scoring            the log-probability of texts
    answer_metrics     exact match and F1 of generated answers
"""
