"""The settings of Hugging Face's config.json that do not change what a model computes, each
with the reason.

    name in HARMLESS             # whether a setting need not be read
    carried_settings(config)     # those that go along, there and back

All other settings must be read by a family, or they are errors: see
`Settings.refuse_unread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Reason -> names, separated by spaces. These settings are kept, and written back.
_CARRIED_BY_REASON = {
    "ids with a meaning in texts, which our vocabularies and tasks name": (
        "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id "
        "unk_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id"
    ),
    "how texts are generated, which our `Decoder` has settings of its own for": (
        "do_sample temperature top_k top_p typical_p min_length max_length max_new_tokens "
        "num_beams num_beam_groups num_return_sequences diversity_penalty length_penalty "
        "repetition_penalty encoder_no_repeat_ngram_size no_repeat_ngram_size "
        "early_stopping bad_words_ids suppress_tokens begin_suppress_tokens "
        "exponential_decay_length_penalty remove_invalid_values output_scores "
        "return_dict_in_generate task_specific_params prefix"
    ),
    "names of classes and tasks": (
        "id2label label2id num_labels _num_labels problem_type finetuning_task"
    ),
    "the tokenizer's class": "tokenizer_class",
    "initial values, which the tensors replace": (
        "initializer_range initializer_factor initializer_cutoff_factor"
    ),
}
_DROPPED_BY_REASON = {
    "of the files, not of the model": (
        "architectures model_type transformers_version torch_dtype dtype _name_or_path "
        "_commit_hash transformers.js_config is_llama_config unsloth_fixed unsloth_version"
    ),
    "what a call returns or keeps": (
        "output_attentions output_hidden_states output_past return_dict use_return_dict "
        "use_cache torchscript"
    ),
    "another way to the same numbers": (
        "chunk_size_feed_forward _attn_implementation attn_implementation "
        "gradient_checkpointing use_bfloat16 reorder_and_upcast_attn"
    ),
    "of classes that are not read, or of the one that reads it": (
        "classifier_dropout summary_activation summary_first_dropout "
        "summary_proj_to_labels summary_type summary_use_proj"
    ),
    "the maximum length of GPT-2 and T5 again, or of a model without a maximum": (
        "n_ctx n_positions max_sequence_length"
    ),
    "of Google's multilingual BERT: always so, and no code reads them": (
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
        "pooler_size_per_head pooler_type"
    ),
}


def _names(by_reason: Mapping[str, str]) -> frozenset[str]:
    """Returns all names of a table."""
    return frozenset(name for names in by_reason.values() for name in names.split())


_CARRIED = _names(_CARRIED_BY_REASON)
# Names of settings that no family has to read.
HARMLESS = _CARRIED | _names(_DROPPED_BY_REASON)


def carried_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a config.json that are not of the architecture, and that users of
    the model need: special ids, generation, names of classes.
    """
    return {name: value for name, value in config.items() if name in _CARRIED}
