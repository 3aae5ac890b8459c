"""Packaging of meshtf: what it needs, what it ships, and why.

The gin files and the profiles of hardware lie in `configs/` at the top of a checkout,
where people look for them, and are shipped as `transformer/configs/`, so that a wheel
has two top-level names and no more. `transformer.cli.config_files.find_config` and
`meshtf.hardware.profile.hardware_folder` find them in both places.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'= "(.*)"', (HERE / "meshtf" / "version.py").read_text())[1]
EXTRAS = {
    # From TensorFlow 2.21 on, `tf.summary.scalar` writes events only where TensorBoard
    # is there.
    "tensorboard": ["tensorboard>=2.20"],
    # Meshes with devices="spmd": jax is the best-kept host of XLA's devices, and all
    # that is used of it is public. The other two bring the plugin of their devices.
    "spmd": ["jax>=0.6.2"],
    "cuda": ["jax[cuda12]>=0.6.2"],
    "tpu": ["jax[tpu]>=0.6.2"],
    # Word pieces and sentence pieces, trained and run; bytes need neither. Both are
    # what others use for them, so that vocabularies and their ids are shared.
    "text": ["tokenizers>=0.20", "sentencepiece>=0.2"],
    # `examples.digits` and `examples.amoebanet` learn from the images that scikit-learn
    # brings, without a download; it scores the predictions of `examples.recommenders`.
    "examples": ["scikit-learn>=1.5"],
    # `transformer.convert` reads and writes the files of other libraries' models.
    "convert": ["safetensors>=0.4.5"],
    # tests/data/known_models/make_references.py makes the numbers that known models are
    # compared with; nothing imports these, tests neither. transformers 5 unties T5 1.1
    # as that file says.
    "hf": ["torch>=2.4", "transformers>=5.23,<6", "safetensors>=0.4.5"],
    # `make docs` writes the reference from docstrings: small, plain Python, no plugins.
    "docs": ["pdoc>=15"],
    "test": [
        "pytest>=8.1",  # runs the tests and the doctests
        "pytest-xdist>=3.5",  # on more than one core
        "ruff>=0.17,<0.18",  # lint and format, which differs by version
        "mypy>=1.10",  # types
        "setuptools>=70.1",  # builds the wheel whose contents a test looks at
        "jax>=0.6.2",  # the devices of the SPMD runtime
        "safetensors>=0.4.5",  # the files that transformer.convert reads and writes
        "scikit-learn>=1.5",  # the images of examples.digits and .amoebanet; AUC
        "tensorboard>=2.20",  # the events that the metrics write are read back
        "tokenizers>=0.20",  # vocabularies of word pieces
        "sentencepiece>=0.2",  # and of sentence pieces
        "hypothesis>=6.100",  # draws programs, and shrinks those that fail
        "nbclient>=0.10",  # runs the notebooks of docs/learn/
        "ipykernel>=6",  # in a kernel, as readers do
    ],
}

setup(
    name="meshtf",
    version=VERSION,
    description="Models in named dimensions, run on any mesh of devices by changing "
    "one line",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "numpy>=1.26",
        "absl-py>=2",
        "gin-config>=0.5",
    ],
    extras_require=EXTRAS,
    packages=[
        *find_packages(include=["meshtf*", "transformer*"]),
        "transformer.configs",
    ],
    package_dir={"transformer.configs": "configs"},
    package_data={
        "meshtf": [
            "py.typed",
            "*.txt",
            "forecast/reports/*.html",
            "runtime/spmd/compiled/targets/*.txtpb",
        ],
        "transformer.configs": ["**/*.gin", "**/*.json"],
    },
)
