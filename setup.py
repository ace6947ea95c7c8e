"Packaging: name, version and summary come from settings.ini, dependencies stand here."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
config = ConfigParser(delimiters=["="])
config.read(here/"settings.ini", encoding="utf-8")
ini = config["DEFAULT"]

library = ["torch>=2.6", "torchvision", "numpy", "scipy", "scikit-learn>=1.6", "pandas", "matplotlib", "pydantic>=2",
           "pyyaml", "safetensors", "filelock>=3.13", "lazy_loader>=0.4", "shtab>=1.13", "threadpoolctl", "tqdm",
           "torchmetrics>=1.4", "rich>=13"]
notebooks = ["jupyterlab", "papermill>=2.6", "ipywidgets", "ipykernel"]
# nbdev 3 refuses settings.ini, and newer versions of execnb break nbdev 2
nbdev = ["nbdev==2.4.14", "execnb==0.1.18", "fastcore<2", "ghapi<2"]
oracles = ["netcal", "relplot"]  # other people's metrics, to test ours against
clusters = ["ray", "submitit"]
board = ["tensorboard"]
tables = ["pyarrow>=14.0.1"]  # parquet and feather
onnx = ["onnx", "onnxruntime", "onnxscript"]
site = ["mkdocs-material", "mkdocs-jupyter", "beautifulsoup4", "latex2mathml"]
tools = ["pytest", "pytest-xdist", "hypothesis", "nbstripout", "nbconvert", "ruff", "basedpyright", "playwright"]
dev = notebooks + nbdev + oracles + clusters + board + tables + onnx + site + tools
bench = ["probmetrics", "numba"]  # numba: probmetrics imports it without asking for it

setup(
    name=ini["lib_name"],
    version=ini["version"],
    description=ini["description"],
    long_description=(here/"README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords=ini["keywords"],
    packages=find_packages(include=["calibnb", "calibnb.*"]),
    package_data={"": ["*.pyi"]},
    package_dir={"": "."},  # a plain .pth: a finder would come after a folder `calibnb` in the working directory
    python_requires=f">={ini['min_python']}",
    install_requires=library,
    extras_require=dict(notebooks=notebooks, dev=dev, bench=bench, tensorboard=board, tables=tables, onnx=onnx,
                        ray=["ray"], slurm=["submitit"]),
    entry_points=dict(console_scripts=["calibnb=calibnb.cli:main"]),
)
