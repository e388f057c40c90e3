"""Tests of the windows' order against a loop over tokens, and against the reference's numpy calls written out."""

import numpy as np
import pytest

from llama31_8b import order

SIZES = np.array([5, 1, 9, 1, 1, 12, 3, 8], np.int32)  # 40 tokens.


def loop_windows(sizes, documents, length: int) -> list[list[tuple[int, int]]]:
    """(document, token) of each window of N + 1 tokens, found token by token."""
    walk = [(int(d), t) for d in documents for t in range(sizes[d])]
    return [walk[i : i + length + 1] for i in range(0, len(walk) - length, length)]


def tokens(pieces) -> list[tuple[int, int]]:
    return [(d, t) for d, first, count in pieces for t in range(first, first + count)]


def megatron(sizes, length: int, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(documents, windows) by the calls of the reference's gpt_dataset.py, one after another."""
    per_epoch, epochs = int(sizes.sum()), 1
    while epochs * per_epoch < samples * length + 1:
        epochs += 1
    state, apart = np.random.RandomState(seed), False
    before = ((epochs - 1) * per_epoch - 1) // length
    if epochs > 1:
        apart = samples - before < int(0.8 * ((per_epoch - 1) // length))
    if apart:
        first = np.tile(np.arange(len(sizes)), epochs - 1)
        state.shuffle(first)
        last = np.arange(len(sizes))
        state.shuffle(last)
        documents = np.concatenate([first, last])
    else:
        documents = np.tile(np.arange(len(sizes)), epochs)
        state.shuffle(documents)
    total = (epochs * per_epoch - 1) // length
    windows = np.arange(before if apart else total)
    state.shuffle(windows)
    if apart:
        rest = np.arange(before, total)
        state.shuffle(rest)
        windows = np.concatenate([windows, rest])
    return documents, windows


# 39 // 5 = 7 windows an epoch; 8 need a second one, whose 1 of 7 windows sets it apart, and 13 need most of it.
@pytest.mark.parametrize("samples", [1, 7, 8, 13, 22, 29], ids=lambda n: f"{n} samples")
@pytest.mark.parametrize("seed", [0, 32767])
def test_the_reference_order_is_megatrons(samples, seed):
    stream = order.reference(SIZES, 5, samples, seed)
    documents, windows = megatron(SIZES, 5, samples, seed)
    np.testing.assert_array_equal(stream.documents, documents)
    np.testing.assert_array_equal(stream.windows, windows)
    assert len(stream) >= samples
    whole = loop_windows(SIZES, documents, 5)
    for number, window in enumerate(windows):
        assert tokens(stream.pieces(number)) == whole[window]


def test_many_small_texts_give_the_windows_of_the_walk():
    """Documents of one token and none, and windows that end where a document does, are among these."""
    rng, ended_with_document = np.random.default_rng(0), 0
    for trial in range(200):
        sizes = rng.integers(0, 12, rng.integers(3, 40)).astype(np.int32)
        length, epochs = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        count = order.window_count(int(sizes.sum()) * epochs, length)
        if count < 1:
            continue
        stream = order.reference(sizes, length, count, trial)
        whole = loop_windows(sizes, stream.documents, length)
        for number, window in enumerate(stream.windows):
            window_tokens = tokens(stream.pieces(number))
            assert window_tokens == whole[window]
            ended_with_document += window_tokens[-1][1] == sizes[window_tokens[-1][0]] - 1
    assert ended_with_document > 100


def test_chunks_of_documents_do_not_change_the_windows(monkeypatch):
    whole = order.reference(SIZES, 5, 29, 3)
    monkeypatch.setattr(order, "_CHUNK", 3)
    parts = order.reference(SIZES, 5, 29, 3)
    np.testing.assert_array_equal(whole.places, parts.places)
    np.testing.assert_array_equal(whole.offsets, parts.offsets)


def test_one_epoch_shows_each_window_once_and_begins_as_the_reference_does():
    epochs = order.Epochs(SIZES, 5, 11)
    assert len(epochs) == 7
    single = order.reference(SIZES, 5, 7, 11)
    assert [list(epochs.pieces(n)) for n in range(7)] == [list(single.pieces(n)) for n in range(7)]
    second = [tokens(epochs.pieces(n)) for n in range(7, 14)]
    assert second != [tokens(epochs.pieces(n)) for n in range(7)]
    inputs = [token for window in second for token in window[:-1]]
    assert len(set(inputs)) == len(inputs) == 35
    assert [tokens(epochs.pieces(n)) for n in range(7, 14)] == second  # After another epoch was read.


def test_a_run_asks_for_a_two_hundredth_more_as_a_list_of_files_does():
    assert len(order.train_order(SIZES, 5, "reference", 7, 0).documents) == 2 * len(SIZES)
    assert isinstance(order.train_order(SIZES, 5, "one_epoch", 7, 0), order.Epochs)


def test_the_evaluation_is_shuffled_by_the_seed_or_in_the_files_order():
    plain = order.eval_order(SIZES, 5, "one_epoch", 99, 1)
    assert [tokens(plain.pieces(n)) for n in range(7)] == loop_windows(SIZES, range(8), 5)
    documents, windows = megatron(SIZES, 5, 10, 1)
    shuffled = order.eval_order(SIZES, 5, "reference", 10, 1)
    np.testing.assert_array_equal(shuffled.documents, documents)
    np.testing.assert_array_equal(shuffled.windows, windows)


def test_the_epochs_of_published_runs():
    """The reference mixes 8 epochs at batch 16 and 31 at 64; R60's validation, 315 (facts of a published log)."""

    def epochs(tokens: int, samples: int) -> int:
        stream = order.reference(np.array([tokens], np.int32), 8192, samples, 0)
        return len(stream.documents)

    # A hundredth of the published sizes and samples, so that the lengths stay small.
    assert epochs(209_941_936, int(12_000 * 16 * order.BLEND)) == 8
    assert epochs(209_941_936, int(12_000 * 64 * order.BLEND)) == 31
    assert epochs(416_421, 16_005) == 315


def test_a_last_epoch_of_just_four_fifths_is_not_apart() -> None:
    """Of ten windows an epoch: eight of the last one are shuffled with the others, seven are not."""
    lengths = np.ones(101, np.int32)
    for samples, parts in ((18, (2,)), (17, (1, 1))):
        state = np.random.RandomState(5)
        expected = np.concatenate([order._shuffled_documents(101, epochs, state) for epochs in parts])
        np.testing.assert_array_equal(order.reference(lengths, 10, samples, 5).documents, expected)
