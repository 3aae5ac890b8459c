"""Registers classes and functions of meshtf with gin, so that gin files can bind their
arguments. It is done here, since meshtf itself does not depend on gin.

Example, in a gin file:

    Mesh.axes = "data:4;model:2"
    Mesh.layout = "batch:data; heads:model; d_ff:model; vocab:model"
    AdamW.learning_rate = @warmup_cosine()
"""

from __future__ import annotations

import gin

import meshtf as mtf

_OPTIMIZERS = mtf.optimizers
for _configurable in (
    mtf.Mesh,
    _OPTIMIZERS.SGD,
    _OPTIMIZERS.Adam,
    _OPTIMIZERS.AdamW,
    _OPTIMIZERS.LAMB,
    _OPTIMIZERS.Adafactor,
    _OPTIMIZERS.Adagrad,
    _OPTIMIZERS.FTRL,
    _OPTIMIZERS.warmup_cosine,
    _OPTIMIZERS.warmup_inverse_sqrt,
    _OPTIMIZERS.linear_warmup,
    _OPTIMIZERS.linear_decay,
    _OPTIMIZERS.cosine_decay,
    _OPTIMIZERS.inverse_sqrt,
    _OPTIMIZERS.slanted_triangular,
    _OPTIMIZERS.product,
    _OPTIMIZERS.delay,
    _OPTIMIZERS.match_names,
    _OPTIMIZERS.exclude_names,
):
    gin.external_configurable(_configurable)
