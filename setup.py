"Packaging: name, version and summary come from settings.ini, dependencies stand here."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
config = ConfigParser(delimiters=["="])
config.read(here/"settings.ini", encoding="utf-8")
ini = config["DEFAULT"]

library = ["torch>=2.6", "numpy", "scipy>=1.12", "scikit-learn>=1.6", "pandas", "matplotlib", "pydantic>=2",
           "pyyaml", "safetensors", "filelock>=3.13", "lazy_loader>=0.4", "shtab>=1.13", "threadpoolctl", "tqdm",
           "torchmetrics>=1.4", "rich>=13"]
train = ["torchvision"]  # files of images, CIFAR and SVHN, networks of torchvision
notebooks = ["jupyterlab", "papermill>=2.6", "ipywidgets", "ipykernel"] + train
# nbdev 3 refuses settings.ini, and newer versions of execnb break nbdev 2
nbdev = ["nbdev==2.4.14", "execnb==0.1.18", "fastcore<2", "ghapi<2"]
oracles = ["netcal", "relplot"]  # other people's metrics, to test ours against
clusters = ["ray", "submitit"]
board = ["tensorboard"]
tables = ["pyarrow>=14.0.1"]  # parquet and feather
onnx = ["onnx", "onnxruntime", "onnxscript"]
recipes = ["transformers", "accelerate", "lightning", "mlflow-skinny>=3"]  # executed recipes of the how-to
site = ["mkdocs-material", "mkdocs-jupyter", "beautifulsoup4", "latex2mathml"]
tools = ["pytest", "pytest-xdist", "hypothesis", "nbstripout", "nbconvert", "ruff", "basedpyright", "playwright",
         "build", "twine", "setuptools>=64"]
dev = notebooks + nbdev + oracles + clusters + board + tables + onnx + recipes + site + tools
bench = ["probmetrics", "numba"]  # numba: probmetrics imports it without asking for it

# what calibnb.core.resources finds; the votes of CIFAR-10H (*.votes.npz) have another licence and stay here
SHARED = ["nbs/*.csv", "nbs/assets/*", "nbs/index.ipynb", "nbs/experiments/*.ipynb", "nbs/explore/*.ipynb",
          "sweeps/*.yaml", "runs/gallery/cifar10/*.npz", "runs/gallery/cifar10/gamma.csv",
          "docs/audit-1.schema.json"]

LEFT_OUT = ".votes.", ".more.", "cifar10/cifar10_papers"  # another licence, or too large


class BuildWithResources(build_py):
    "Copy the experiments, sweeps and tables into the package; an sdist has them at their own places."
    def resources(self):
        "Source -> copy, both relative to this folder."
        found = sorted(path.relative_to(here).as_posix() for pattern in SHARED for path in here.glob(pattern))
        return {path: f"{self.build_lib}/calibnb/_repository/{path}" for path in found
                if not any(part in path for part in LEFT_OUT)}

    def run(self):
        super().run()
        if not self.editable_mode:
            for source, target in self.resources().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target, preserve_mode=False)

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + list({} if self.editable_mode else self.resources().values())

    def get_source_files(self):
        return super().get_source_files() + ["settings.ini", "CHANGELOG.md", *self.resources()]


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
    extras_require=dict(train=train, notebooks=notebooks, dev=dev, bench=bench, tensorboard=board, tables=tables,
                        onnx=onnx,
                        ray=["ray"], slurm=["submitit"]),
    cmdclass=dict(build_py=BuildWithResources),
    entry_points=dict(console_scripts=["calibnb=calibnb.cli:main"]),
)
