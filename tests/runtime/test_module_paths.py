"""Names of variables from the attributes of their modules, and summaries of modules."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshtf as mtf

LAYOUT = "d:x"


class Mlp(mtf.Module):
    """Variables and layers without names."""

    def __init__(self, mesh, name=None):
        super().__init__(name)
        self.w = mtf.Variable(mesh, "d:4;h:8", "normal")
        self.out = mtf.layers.Dense(mesh, "h:8", "d:4", use_bias=True)
        self.dropout = mtf.layers.Dropout(0.5)

    def __call__(self, x, training=False):
        return self.out(self.dropout(mtf.einsum([x, self.w], "b;h"), training))


class ScopedMlp(mtf.Module):
    """The same with names and a scope."""

    def __init__(self, mesh):
        super().__init__("mlp")
        with self.scope():
            self.w = mtf.Variable(mesh, "d:4;h:8", "normal", "w")
            self.out = mtf.layers.Dense(mesh, "h:8", "d:4", use_bias=True, name="out")


class Model(mtf.Module):
    """Modules in attributes, lists and dicts; one has a name."""

    def __init__(self, mesh):
        super().__init__()
        self.stem = Mlp(mesh)
        self.blocks = []
        for _ in range(2):
            self.blocks.append(Mlp(mesh))
        self.heads = {"left": Mlp(mesh), "right": Mlp(mesh, name="other")}
        self.shared = self.stem
        self.gated = mtf.layers.FeedForward(mesh, "d:4", "h:8", "swiglu")
        self.repeated = mtf.layers.Repeat(lambda: Mlp(mesh), "layers:2")


@pytest.fixture
def mesh():
    return mtf.Mesh("x:2", LAYOUT)


def names(module):
    """Returns the names of all variables."""
    return sorted(v.name for v in module.variables)


def test_module_pathss_name_variables(mesh):
    assert names(Mlp(mesh)) == ["mlp/out/bias", "mlp/out/kernel", "mlp/w"]
    mlps = ["stem", "blocks_0", "blocks_1", "heads_left", "other", "repeated/mlp"]
    of_mlps = [
        f"model/{mlp}/{v}" for mlp in mlps for v in ("out/bias", "out/kernel", "w")
    ]
    gated = [f"model/gated/{layer}/kernel" for layer in ("wi_0", "wi_1", "wo")]
    assert names(Model(mesh)) == sorted(of_mlps + gated)


def test_values_depend_only_on_the_name(mesh):
    scoped = {v.name: v.numpy() for v in ScopedMlp(mesh).variables}
    for v in Mlp(mesh).variables:
        np.testing.assert_array_equal(v.numpy(), scoped[v.name])
    model = Model(mesh)
    assert (model.stem.w.numpy() != model.blocks[0].w.numpy()).any()
    assert (model.blocks[0].w.numpy() != model.blocks[1].w.numpy()).any()


def test_a_scope_around_is_in_the_path(mesh):
    with mtf.scope("outer"):
        assert names(Mlp(mesh))[-1] == "outer/mlp/w"


def test_what_is_made_before_the_constructor_of_the_base_belongs_outside(mesh):
    class Holder(mtf.Module):
        def __init__(self):
            mlp = Mlp(mesh)
            super().__init__()
            self.mlp = mlp

    assert names(Holder())[-1] == "mlp/w"


def test_subclasses_name_once(mesh):
    class Wider(Mlp):
        def __init__(self, mesh):
            super().__init__(mesh)
            self.extra = mtf.Variable(mesh, "h:8", "zeros")

    assert names(Wider(mesh)) == [
        f"wider/{v}" for v in ("extra", "out/bias", "out/kernel", "w")
    ]


def test_modules_of_attributes_train_under_layouts():
    results = []
    for layout in ("", "d:x", "b:x", "h:x"):
        mesh = mtf.Mesh("x:2", layout)
        mlp = Mlp(mesh)

        @mtf.function(x="b;d")
        def gradients(x, mlp=mlp):
            with mtf.seed(1):
                loss = (mlp(x, training=True) * 2.0).mean()
            return [loss, *mtf.gradients([loss], [mlp.w, mlp.out.kernel])]

        x = np.ones((4, 4), "float32")
        results.append([y.numpy() for y in gradients(x)])
    for result in results[1:]:
        for y, expected in zip(result, results[0], strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_random_numbers_of_a_module_without_a_name_are_refused(mesh):
    class Noise(mtf.Module):
        def __init__(self, name=None):
            super().__init__(name)
            with self.scope():
                self.noise = mtf.random_normal(mesh, "d:4", seed=1)

    class Outer(mtf.Module):
        def __init__(self, name):
            super().__init__("outer")
            self.inner = Noise(name)

    with pytest.raises(mtf.PlanError, match='(?s)no name yet.*Noise.*name="...'):
        Outer(None)
    assert Outer("noise").inner.noise.shape == mtf.Shape("d:4")


def test_no_name_before_the_constructor_returns(mesh):
    class Reads(mtf.Module):
        def __init__(self, read):
            super().__init__()
            self.w = mtf.Variable(mesh, "d:4", "zeros")
            read(self.w)

    for read in (lambda w: w.numpy(), lambda w: w.name, lambda w: w.assign(w * 2.0)):
        with pytest.raises(mtf.PlanError, match='(?s)no name before.*name="...'):
            Reads(read)
    texts = []
    assert Reads(lambda w: texts.append(repr(w))).w.name == "reads/w"
    assert "'reads/?'" in texts[0]

    class Prints(Mlp):
        def __init__(self, mesh):
            super().__init__(mesh)
            self.extra = mtf.Variable(mesh, "d:4", "zeros")
            texts.append(repr(self))

    assert Prints(mesh).extra.name == "prints/extra"
    assert "prints/?" in texts[1]


def test_what_no_attribute_holds_has_no_name(mesh):
    class Drops(mtf.Module):
        def __init__(self):
            super().__init__()
            self.names = [mtf.layers.Dropout(0.5).default_name]

    with pytest.raises(
        mtf.PlanError, match="(?s)in no attribute.*Drops.*test_module_paths"
    ):
        Drops()


def test_variables_outside_of_modules_need_a_name(mesh):
    with pytest.raises(mtf.ArgumentError, match='"name" takes a string'):
        mtf.Variable(mesh, "d:4", "zeros")


def test_summary(mesh):
    lines = Mlp(mesh).summary().split("\n")
    assert lines[0].split() == [
        "variable",
        "shape",
        "placement",
        "parameters",
        "bytes",
        "per",
        "device",
    ]
    rows = [line.split() for line in lines[1:]]
    assert ["mlp/w", "[d:4", "h:8]", "d/x", "32", "64"] in rows
    assert ["mlp/out/bias", "[d:4]", "d/x", "4", "8"] in rows
    assert rows[-1] == ["total", "68", "136"]


def test_summary_of_stages():
    class Stages(mtf.Module):
        def __init__(self, mesh):
            super().__init__()
            self.all_stages = mtf.Variable(mesh, "d:4", "zeros")
            with mtf.stage(0):
                self.first = mtf.Variable(mesh, "d:8", "zeros")
            with mtf.stage(1):
                self.last = mtf.Variable(mesh, "d:16", "zeros")

    lines = Stages(mtf.Mesh("stage:2")).summary().split("\n")
    assert lines[-1].split() == ["total", "28", "80"]
    assert "stage 1 of stage" in next(line for line in lines if "stages/last" in line)


def test_repr_of_a_large_module(mesh):
    model = Model(mesh)
    lines = repr(model).split("\n")
    assert lines[0] == "<Model 'model'>"
    assert len(lines) <= 20
    assert "... and 5 more" in lines[-2]
    assert lines[-1].split()[0] == "total"
    html = model._repr_html_()
    assert html.count("<tr>") == 2 + len(model.variables)
    assert "model/stem/w" in html
    assert repr(mtf.layers.Dropout(0.5)) == "<Dropout 'dropout'>"


class Attention(mtf.Module):
    """A module of layers whose dimensions the layout shards over one axis."""

    def __init__(self, mesh, **options):
        super().__init__()
        self.attention = mtf.layers.MultiHeadAttention(
            mesh, "c:8", options.pop("heads", "heads:2"), "key:4", **options
        )


class Net(mtf.Module):
    def __init__(self, mesh, **options):
        super().__init__()
        self.blocks = [Attention(mesh, **options) for _ in range(2)]


def layout_error(layout, **options) -> pytest.ExceptionInfo[mtf.LayoutError]:
    mesh = mtf.Mesh("data:2;model:2", layout)
    with pytest.raises(mtf.LayoutError) as caught:
        Net(mesh, **options)
    return caught


def test_an_impossible_layout_names_the_path_of_the_variable():
    caught = layout_error("c:model; heads:model")
    text = str(caught.value)
    assert "[c:8 heads:2 key:4] 'net/blocks_0/attention/key/kernel'" in text
    assert "mtf.MultiHeadAttention, " in text and "test_module_paths.py:" in text
    # Of the library, only the constructor that raised it is in the traceback.
    assert sum("meshtf" in str(entry.path) for entry in caught.traceback) == 1


def test_what_an_impossible_layout_advises_is_possible():
    text = str(layout_error("c:model; heads:model").value)
    (rule,) = re.findall(r'Mesh\(variable_layout="(.*?)"\)', text)
    mesh = mtf.Mesh("data:2;model:2", "c:model; heads:model", variable_layout=rule)
    outputs = []
    for each in (mesh, mtf.Mesh("")):
        x = mtf.asarray(each, np.ones((2, 3, 8), "float32"), "batch;length;c")
        outputs.append(Net(each).blocks[0].attention(x).numpy())
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-6)


def test_grouped_queries_say_which_rule_replaces_the_other():
    caught = layout_error(
        "heads:model; kv_heads:model",
        heads="kv_heads:2; heads:4",
        kv_heads_dim="kv_heads",
    )
    assert "write kv_heads:model in place of heads:model" in str(caught.value)
