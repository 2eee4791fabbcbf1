"""Packed rows: no token is lost, sequences do not attend to each other, and any row is read directly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.errors import InvalidInput
from lightir.models.framing import TextBatch
from lightir.train.batches.packing import PackedTexts, packed_states, shared_rows, states_without_padding
from tiny_models import CAUSAL, tiny_backbone


def numbered(lengths: list[int]) -> list[list[int]]:
    """Return sequences whose tokens are all different."""
    ends = np.cumsum([0, *lengths])
    return [list(range(int(a), int(b))) for a, b in itertools.pairwise(ends)]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(2, 7), st.integers(0, 3))
def test_an_epoch_holds_every_token_once_but_for_the_last_rows_rest(lengths: list[int], length: int, seed: int) -> None:
    if sum(lengths) < length:
        with pytest.raises(InvalidInput, match="less than one row"):
            PackedTexts(numbered(lengths), length=length, seed=seed)
        return
    texts = PackedTexts(numbered(lengths), length=length, seed=seed)
    batch = texts.batch(0, rows=texts.rows_per_epoch)
    seen = batch.input_ids.flatten().tolist()
    assert len(set(seen)) == len(seen) == sum(lengths) // length * length
    owner = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(item) for item in lengths])
    for row, pieces, positions in zip(batch.input_ids, batch.pieces, batch.positions, strict=True):
        for piece in range(int(pieces[-1]) + 1):
            ids = row[pieces == piece].numpy()
            assert len(set(owner[ids])) == 1  # of one document
            assert np.array_equal(np.diff(position[ids]), np.ones(len(ids) - 1))  # in its order, without gaps
            assert positions[pieces == piece].tolist() == list(range(len(ids)))


def test_a_token_predicts_the_next_one_of_its_own_piece_alone() -> None:
    texts = PackedTexts(numbered([3, 4, 1, 5, 2]), length=5, seed=1)
    batch = texts.batch(0, rows=3)
    predicting = batch.predicting
    assert int(predicting.sum()) == sum(5 - (int(row[-1]) + 1) for row in batch.pieces)
    assert torch.equal(batch.targets, batch.input_ids[predicting] + 1)
    assert not bool(predicting[:, -1].any())


def test_any_batch_of_any_epoch_is_found_at_once_and_shared_out_among_processes() -> None:
    texts = PackedTexts(numbered([3, 4, 6, 5, 2, 9]), length=4, seed=3)  # 7 rows an epoch
    again = PackedTexts(numbered([3, 4, 6, 5, 2, 9]), length=4, seed=3)
    inorder = [texts.batch(number, rows=4).input_ids for number in range(6)]
    for number in (5, 2, 0):
        assert torch.equal(again.batch(number, rows=4).input_ids, inorder[number])
        shares = [again.batch(number, rows=4, process=p, processes=2).input_ids for p in range(2)]
        assert torch.equal(torch.cat(shares), inorder[number])
    epochs = torch.cat(inorder)[:21].view(3, 28)
    assert not torch.equal(epochs[0], epochs[1])
    with pytest.raises(InvalidInput, match="do not divide"):
        texts.batch(0, rows=4, processes=3)


def test_a_length_that_predicts_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        PackedTexts(numbered([5]), length=1, seed=0)


@pytest.mark.parametrize("name", CAUSAL)
def test_packing_equals_one_forward_for_each_piece(name: str) -> None:
    backbone = tiny_backbone(name)
    generator = np.random.default_rng(0)
    sequences = [generator.integers(2, 258, n).tolist() for n in (5, 9, 1, 12, 3, 7)]
    batch = PackedTexts(sequences, length=16, seed=0).batch(0, rows=2)
    with torch.no_grad():
        packed = packed_states(backbone, batch)
        for row in range(2):
            for piece in range(int(batch.pieces[row, -1]) + 1):
                own = batch.pieces[row] == piece
                alone = backbone.states(batch.input_ids[row][own][None], None)
                torch.testing.assert_close(packed[row, own], alone[0], atol=2e-5, rtol=1e-4)


def test_packing_is_refused_for_encoders() -> None:
    batch = PackedTexts(numbered([8]), length=4, seed=0).batch(0, rows=1)
    with pytest.raises(InvalidInput, match="not an encoder"):
        packed_states(tiny_backbone("bert"), batch)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_texts_that_share_rows_have_the_states_of_padded_ones(name: str, attention: str, padding_side: str) -> None:
    backbone = tiny_backbone(name, attention=attention)  # type: ignore[arg-type]
    lengths = (7, 1, 12, 3, 5, 12)
    n, longest = len(lengths), max(lengths)
    ids = torch.randint(2, 258, (n, longest), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if padding_side == "left" else mask
    batch = TextBatch(ids, mask, mask)
    with torch.no_grad():
        for length in (1, 13, 40):
            packed = states_without_padding(backbone, batch, length=length)
            assert not packed[~mask].any()
            for row in range(n):
                own = ids[row][mask[row]][None]
                alone = backbone.states(own, torch.ones_like(own))[0]
                torch.testing.assert_close(packed[row][mask[row]], alone, atol=2e-5, rtol=1e-4)


def test_every_text_has_one_place_and_no_row_is_overfull() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 30, size=rng.integers(1, 40)).tolist()
        rows = shared_rows(lengths, 30)
        assert sorted(text for row in rows for text in row) == list(range(len(lengths)))
        used = [sum(lengths[text] for text in row) for row in rows]
        assert max(used) <= 30
        assert len(rows) == 1 or min(a + b for a, b in itertools.pairwise(sorted(used))) > 30  # no two fit in one
