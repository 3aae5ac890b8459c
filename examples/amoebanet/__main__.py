"""Classifies handwritten digits by a small AmoebaNet-D: two pipeline stages, and the batch
sharded along an axis of size 2.

    python -m examples.amoebanet       (needs scikit-learn: pip install -e '.[examples]')

The 8x8 images are enlarged to 32x32 pixels, since the network halves height and width five
times. Nothing else is adapted.
"""

from functools import partial

import numpy as np
from sklearn.datasets import load_digits

import meshtf as mtf
from examples.amoebanet.network import amoebanet_d

if __name__ == "__main__":
    mtf.configure_process()  # before the mesh starts TensorFlow
MESH = mtf.Mesh("stage:2; data:2", layout="batch:data")
NUM_CELLS = 3
FILTERS = 32
EPOCHS = 5
BATCH_SIZE = 128
MICROBATCHES = 4
NUM_HELD_OUT = 360
STEPS_PER_EPOCH = (1797 - NUM_HELD_OUT) // BATCH_SIZE  # the data set has 1797 images
IMAGES = "batch;height;width;color"

layers = amoebanet_d(MESH, cells=NUM_CELLS, filters=FILTERS, classes=10, colors=1)
training_pipeline = mtf.pipeline.GPipe(
    [partial(layer, training=True) for layer in layers],
    stages=2,
    microbatches=MICROBATCHES,
    # An example of one microbatch, by which the layers are divided into stages.
    inputs=mtf.zeros(MESH, "batch:32;height:32;width:32;color:1"),
)
# The same layers in the same stages, without `training`.
evaluation_pipeline = mtf.pipeline.GPipe(
    layers, stages=2, microbatches=1, partition=training_pipeline.sizes
)
adam = mtf.optimizers.Adam(
    training_pipeline.trainable_variables,
    mtf.optimizers.warmup_cosine(
        peak=0.012, warmup_steps=8, total_steps=EPOCHS * STEPS_PER_EPOCH
    ),
)


def loss_of(logits: mtf.Tensor, digits: mtf.Tensor) -> mtf.Tensor:
    """Returns the mean cross entropy, a scalar, of logits [batch, classes]."""
    return mtf.layers.softmax_cross_entropy(logits, digits, "classes")


@mtf.function(mesh=MESH, x=IMAGES, digits="batch", step="")
def train_step(x: mtf.Tensor, digits: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
    """Updates the network by one batch, and returns the mean loss, a scalar."""
    loss = training_pipeline.loss(loss_of, x, digits)
    variables = training_pipeline.trainable_variables
    adam.apply_gradients(mtf.gradients([loss], variables), variables, step)
    return loss


@mtf.function(mesh=MESH, x=IMAGES)
def predict(x: mtf.Tensor) -> mtf.Tensor:
    """Returns the likeliest digit of each image: [batch]."""
    return mtf.argmax(evaluation_pipeline(x), "classes")


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    data = load_digits()
    order = rng.permutation(len(data.target))
    small_images = data.images[order, ..., None].astype("float32") / 16
    images = small_images.repeat(4, axis=1).repeat(4, axis=2)
    digits = data.target[order].astype("int32")
    train_size = len(order) - NUM_HELD_OUT
    print(training_pipeline)
    for epoch in range(EPOCHS):
        losses = []
        shuffled = rng.permutation(train_size)[: STEPS_PER_EPOCH * BATCH_SIZE]
        batches = np.split(shuffled, STEPS_PER_EPOCH)
        for step, indices in enumerate(batches, start=epoch * STEPS_PER_EPOCH):
            loss = train_step(images[indices], digits[indices], np.int32(step))
            losses.append(float(loss))
        predicted = predict(images[train_size:]).numpy()
        accuracy = (predicted == digits[train_size:]).mean()
        print(
            f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, accuracy on {NUM_HELD_OUT} "
            f"held-out digits: {accuracy:.1%}",
            flush=True,
        )
