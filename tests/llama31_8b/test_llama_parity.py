"""Tests logits, loss and every gradient against HF's LlamaForCausalLM in float64, weight for weight; skips without it.

Run it in an environment that also has torch 2.13.0 (CPU) and transformers.
"""

import numpy as np
import pytest

from common.layers import rope
from llama31_8b.config import Config
from llama31_8b.model import NORM_EPSILON, ROPE
from tests.llama31_8b import small
from tests.llama31_8b.small import SMALL, loss_and_gradients, network, windows


@pytest.fixture
def torch():
    pytest.importorskip("transformers", reason="transformers absent")
    return pytest.importorskip("torch", reason="torch absent")


def theirs(config: Config, scaling: dict[str, float]):
    """HF's network with the sizes of `config` and rotary positions of `scaling`, in float64."""
    import torch
    import transformers

    scaling_of_hf = {
        "rope_type": "llama3", "rope_theta": scaling["base"], "factor": scaling["factor"],
        "low_freq_factor": scaling["low"], "high_freq_factor": scaling["high"],
        "original_max_position_embeddings": scaling["length"],
    }  # fmt: skip
    sizes = transformers.LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.width, intermediate_size=config.hidden,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.sequence_length, rms_norm_eps=NORM_EPSILON, tie_word_embeddings=False,
        rope_theta=scaling["base"], rope_scaling=scaling_of_hf, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(sizes).to(torch.float64)


def by_name(config: Config, ours: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Our weights, or their gradients, under HF's names and in HF's layout [out, in]."""
    table, *layers, gamma, head = ours
    arrays = {"model.embed_tokens.weight": table, "model.norm.weight": gamma, "lm_head.weight": head.T}
    cuts = np.cumsum([config.heads, config.kv_heads]) * config.head_size
    for i in range(config.layers):
        norm_1, qkv, out, norm_2, gate_up, down = layers[6 * i : 6 * i + 6]
        gate, up = np.split(gate_up, 2, 1)
        projections = dict(zip(("q_proj", "k_proj", "v_proj"), np.split(qkv, cuts, 1)))
        matrices = {f"self_attn.{name}": matrix for name, matrix in {**projections, "o_proj": out}.items()}
        matrices |= {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": down}
        prefix = f"model.layers.{i}"
        arrays |= {f"{prefix}.{name}.weight": matrix.T for name, matrix in matrices.items()}
        arrays |= {
            f"{prefix}.input_layernorm.weight": norm_1,
            f"{prefix}.post_attention_layernorm.weight": norm_2,
        }
    return arrays


class Wide:
    """torch with float64 in the place of float32, in which HF's norms and softmax compute."""

    def __init__(self, torch):
        self._torch = torch

    def __getattr__(self, name: str):
        return getattr(self._torch, "float64" if name == "float32" else name)


def test_logits_loss_and_every_gradient(torch, monkeypatch) -> None:
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "torch", Wide(torch))
    config, tokens = SMALL, windows()
    network_ = theirs(config, small.ROPE)
    task, ours = network(config)
    weights = by_name(config, [v.numpy() for v in ours.trainable_variables])
    parameters = dict(network_.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weights[name].copy()))
    # HF keeps the frequencies in float32, whatever the weights' precision.
    exact = rope.frequencies(config.head_size, **small.ROPE)
    rotary = network_.model.rotary_emb
    np.testing.assert_allclose(rotary.inv_freq.numpy(), exact, rtol=1e-6)
    angles = np.arange(config.sequence_length)[:, None] * np.tile(exact, 2)
    exact_tables = tuple(torch.from_numpy(f(angles))[None] for f in (np.cos, np.sin))
    monkeypatch.setattr(type(rotary), "forward", lambda self, x, position_ids: exact_tables)

    inputs, labels = (torch.from_numpy(part.astype(np.int64)) for part in (tokens[:, :-1], tokens[:, 1:]))
    logits = network_(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), labels.reshape(-1))
    loss.backward()
    np.testing.assert_allclose(ours(tokens[:, :-1]), logits.detach().numpy(), rtol=1e-9, atol=1e-11)
    value, *gradients = loss_and_gradients(task, ours, tokens)
    assert value == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in by_name(config, gradients).items():
        np.testing.assert_allclose(
            gradient, parameters[name].grad.numpy(), rtol=1e-8, atol=1e-12, err_msg=name
        )


def test_frequencies_of_the_full_network(torch) -> None:
    """HF's `llama3` scaling with the benchmark's numbers."""
    frequencies = rope.frequencies(Config().head_size, **ROPE)
    assert ROPE == {"base": 500_000.0, "factor": 8.0, "low": 1.0, "high": 4.0, "length": 8192}
    few = Config(layers=1, hidden=8, vocab_size=8, kv_heads=1, heads=2, width=256, sequence_length=8192)
    np.testing.assert_allclose(theirs(few, ROPE).model.rotary_emb.inv_freq.numpy(), frequencies, rtol=1e-6)
