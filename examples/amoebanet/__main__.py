"""Handwritten digits, told apart by a small AmoebaNet-D: two stages, and two slices of
the batch.

    python -m examples.amoebanet       (needs scikit-learn: pip install 'meshtf[examples]')

Each pixel of the 8x8 images is shown as 4x4 pixels, since the network halves rows and
columns five times. Nothing else is adapted.
"""

from functools import partial

import numpy as np
from sklearn.datasets import load_digits

import meshtf as mtf
from examples.amoebanet.network import amoebanet_d

if __name__ == "__main__":
    mtf.configure_process()
MESH = mtf.Mesh("stage:2; data:2", "batch:data")
CELLS = 3
FILTERS = 32
EPOCHS = 5
BATCH = 128
MICROBATCHES = 4
HELD_OUT = 360
IMAGES = "batch;height;width;color"

layers = amoebanet_d(MESH, CELLS, FILTERS, classes=10, colors=1)
trained = mtf.pipeline.GPipe(
    [partial(layer, training=True) for layer in layers],
    stages=2,
    microbatches=MICROBATCHES,
    inputs=mtf.zeros(MESH, "batch:32;height:32;width:32;color:1"),
)
evaluated = mtf.pipeline.GPipe(
    layers, stages=2, microbatches=1, partition=trained.sizes
)
adam = mtf.optimizers.Adam(
    trained.trainable_variables,
    mtf.optimizers.warmup_cosine(peak=0.012, warmup_steps=8, total_steps=EPOCHS * 11),
)


def loss_of(logits: mtf.Tensor, digits: mtf.Tensor) -> mtf.Tensor:
    return mtf.layers.softmax_cross_entropy(logits, digits, "classes")


@mtf.function(mesh=MESH, x=IMAGES, digits="batch", number="")
def train_step(x: mtf.Tensor, digits: mtf.Tensor, number: mtf.Tensor) -> mtf.Tensor:
    loss = trained.loss(loss_of, x, digits)
    variables = trained.trainable_variables
    adam.apply_gradients(mtf.gradients([loss], variables), variables, number)
    return loss


@mtf.function(mesh=MESH, x=IMAGES)
def digits_in(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.argmax(evaluated(x), "classes")


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    data = load_digits()
    order = rng.permutation(len(data.target))
    images = (
        data.images[order, ..., None].astype("float32").repeat(4, 1).repeat(4, 2) / 16
    )
    digits = data.target[order].astype("int32")
    number = 0
    train = len(order) - HELD_OUT
    print(trained)
    for epoch in range(EPOCHS):
        losses = []
        for rows in np.split(
            rng.permutation(train)[: train // BATCH * BATCH], train // BATCH
        ):
            losses.append(
                float(train_step(images[rows], digits[rows], np.int32(number)))
            )
            number += 1
        right = (digits_in(images[train:]).numpy() == digits[train:]).mean()
        print(
            f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, {right:.1%} of {HELD_OUT} "
            "digits that it never saw are told right",
            flush=True,
        )
