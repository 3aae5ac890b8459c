"""Handwritten digits, told apart by convolutions on images that lie in four blocks on a
2x2 mesh.

    python -m examples.digits       (needs scikit-learn: pip install 'meshtf[examples]')

The network knows of no blocks. Neighbours exchange the rows and columns beside their
border.
"""

import numpy as np
from sklearn.datasets import load_digits

import meshtf as mtf

if __name__ == "__main__":
    mtf.configure_process()
MESH = mtf.Mesh("rows:2; columns:2", "h:rows; w:columns")
EPOCHS = 8
BATCH = 64
HELD_OUT = 360


class Network(mtf.Module):
    """x[batch h w color] -> logits[batch digit]: two convolutions, a pool, and a dense
    layer.
    """

    def __init__(self, mesh: mtf.Mesh) -> None:
        super().__init__("network")
        with self.scope():
            self.conv_1 = mtf.layers.Conv(
                mesh, "h:3;w:3", "color:1", "c_1:16", name="conv_1"
            )
            self.conv_2 = mtf.layers.Conv(
                mesh, "h:3;w:3", "c_1:16", "c_2:32", name="conv_2"
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


@mtf.function(mesh=MESH, x="batch;h;w;color", digits="batch", number="")
def train_step(x: mtf.Tensor, digits: mtf.Tensor, number: mtf.Tensor) -> mtf.Tensor:
    loss = mtf.layers.softmax_cross_entropy(network(x, training=True), digits, "digit")
    variables = network.trainable_variables
    adam.apply_gradients(mtf.gradients([loss], variables), variables, number)
    return loss


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    data = load_digits()
    order = rng.permutation(len(data.target))
    images = data.images[order, ..., None].astype("float32")
    digits = data.target[order]
    train = len(digits) - HELD_OUT
    for epoch in range(EPOCHS):
        batches = np.split(
            rng.permutation(train)[: train // BATCH * BATCH], train // BATCH
        )
        for number, rows in enumerate(batches, start=epoch * len(batches)):
            loss = train_step(
                images[rows], digits[rows].astype("int32"), np.int32(number)
            )
        print(f"epoch {epoch + 1}: loss {float(loss):.4f}")
    logits = network(
        mtf.asarray(MESH, images[train:], "batch;h;w;color"), training=False
    )
    accuracy = (mtf.argmax(logits, "digit").numpy() == digits[train:]).mean()
    print(f"{accuracy:.1%} of {HELD_OUT} digits that it never saw are told right")
