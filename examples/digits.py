"""Classifies handwritten digits by convolutions; images are sharded into four blocks on a
2x2 mesh.

    python -m examples.digits       (needs scikit-learn: pip install -e '.[examples]')

The code of the network does not mention blocks. For each convolution, neighbouring
devices exchange the rows and columns of pixels at their borders.
"""

import numpy as np
from sklearn.datasets import load_digits

import meshtf as mtf

if __name__ == "__main__":
    mtf.configure_process()  # before the mesh starts TensorFlow
MESH = mtf.Mesh("rows:2; columns:2", layout="h:rows; w:columns")
EPOCHS = 8
BATCH_SIZE = 64
NUM_HELD_OUT = 360


class Network(mtf.Module):
    """Two convolutions, a max pool, and a dense layer:
    x[batch, h:8, w:8, color:1] -> logits[batch, digit:10].
    """

    def __init__(self, mesh: mtf.Mesh) -> None:
        super().__init__("network")
        with self.scope():
            self.conv_1 = mtf.layers.Conv(
                mesh,
                window="h:3;w:3",
                reduced_dims="color:1",
                new_dims="c_1:16",
                name="conv_1",
            )
            self.conv_2 = mtf.layers.Conv(
                mesh,
                window="h:3;w:3",
                reduced_dims="c_1:16",
                new_dims="c_2:32",
                name="conv_2",
            )
            self.norm_1 = mtf.layers.BatchNorm(
                mesh, "c_1:16", momentum=0.9, name="norm_1"
            )
            self.norm_2 = mtf.layers.BatchNorm(
                mesh, "c_2:32", momentum=0.9, name="norm_2"
            )
            self.dense = mtf.layers.Dense(mesh, "h:4;w:4;c_2:32", "digit:10")

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.relu(self.norm_1(self.conv_1(x), training))
        x = mtf.relu(self.norm_2(self.conv_2(x), training))
        return self.dense(mtf.max_pool(x, "h:2;w:2"))


network = Network(MESH)
adam = mtf.optimizers.Adam(network.trainable_variables, learning_rate=0.002)


@mtf.function(mesh=MESH, x="batch;h;w;color", digits="batch", step="")
def train_step(x: mtf.Tensor, digits: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
    """Updates the network by one batch, and returns the mean loss, a scalar."""
    loss = mtf.layers.softmax_cross_entropy(network(x, training=True), digits, "digit")
    variables = network.trainable_variables
    adam.apply_gradients(mtf.gradients([loss], variables), variables, step)
    return loss


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    data = load_digits()
    order = rng.permutation(len(data.target))
    images = data.images[order, ..., None].astype("float32")
    digits = data.target[order]
    train_size = len(digits) - NUM_HELD_OUT
    steps_per_epoch = train_size // BATCH_SIZE
    for epoch in range(EPOCHS):
        shuffled = rng.permutation(train_size)[: steps_per_epoch * BATCH_SIZE]
        batches = np.split(shuffled, steps_per_epoch)
        for step, indices in enumerate(batches, start=epoch * len(batches)):
            loss = train_step(
                images[indices], digits[indices].astype("int32"), np.int32(step)
            )
        print(f"epoch {epoch + 1}: loss {float(loss):.4f}")
    logits = network(
        mtf.asarray(MESH, images[train_size:], "batch;h;w;color"), training=False
    )
    predicted = mtf.argmax(logits, "digit").numpy()
    accuracy = (predicted == digits[train_size:]).mean()
    print(f"accuracy on {NUM_HELD_OUT} held-out digits: {accuracy:.1%}")
