"""The parts of meshtf that gin files may set: meshtf itself knows nothing of gin.

    Mesh.axes = "data:4;model:2"
    Mesh.layout = "batch:data; heads:model; d_ff:model; vocab:model"
    AdamW.learning_rate = @warmup_cosine()
"""

from __future__ import annotations

import gin

import meshtf as mtf

for _part in (mtf.Mesh, mtf.optimizers.SGD, mtf.optimizers.Adam, mtf.optimizers.AdamW,
              mtf.optimizers.Adafactor, mtf.optimizers.warmup_cosine,
              mtf.optimizers.warmup_inverse_sqrt):
  gin.external_configurable(_part)
