"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from slm2_web.compile.assets import Fetcher
from slm2_web.compile.install import install_model
from slm2_web.compile.models import MODELS
from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import AssetError, Slm2Error
from tiny_gguf import TinyGguf, make_tiny_gguf

# A loaded machine is slow, not wrong.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m"
QWEN3_TOKENIZER = "qwen3-0.6b/tokenizer.json"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's GGUF file, from the cache, a folder of SLM2_ASSET_DIR, or its sources."""
    try:
        return Fetcher.from_environment(ROOT).fetch(MODELS[MODEL].asset)
    except AssetError as error:
        pytest.fail(f"the tests need the model file {MODELS[MODEL].asset}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def qwen3_json() -> Path:
    """Qwen3's tokenizer.json, from the cache, a folder of SLM2_ASSET_DIR, or its sources."""
    try:
        return Fetcher.from_environment(ROOT).fetch(QWEN3_TOKENIZER)
    except AssetError as error:
        pytest.fail(f"the tests need the file {QWEN3_TOKENIZER}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def packed_smollm2() -> Path:
    """The packed default model: build/models/smollm2-135m, fetched and compiled when not up to date."""
    try:
        return install_model(MODEL, ROOT, Fetcher.from_environment(ROOT), print)
    except Slm2Error as error:
        pytest.fail(f"the tests need the compiled model {MODEL}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> TinyGguf:
    """A tiny random llama model as GGUF, with the default arguments of `make_tiny_gguf`."""
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def packed_tiny(tiny_gguf: TinyGguf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, packed: its directory."""
    out = tmp_path_factory.mktemp("packed") / "tiny"
    pack_gguf(tiny_gguf.path, out, tiny_gguf.spec)
    return out
