"""The supported architectures, and the choice of the one that reads a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mxc.compiler.models.architectures import gpt_oss
from mxc.compiler.models.architectures.arcee import arcee
from mxc.compiler.models.architectures.cohere2 import cohere2
from mxc.compiler.models.architectures.cwm import cwm
from mxc.compiler.models.architectures.deepseek import deepseek_v2, deepseek_v3, glm4_moe_lite
from mxc.compiler.models.architectures.dots1 import dots1
from mxc.compiler.models.architectures.ernie4_5 import ernie4_5, ernie4_5_moe
from mxc.compiler.models.architectures.exaone4 import exaone4
from mxc.compiler.models.architectures.gemma2 import gemma2, gemma3
from mxc.compiler.models.architectures.gemma4 import gemma4, gemma4_unified
from mxc.compiler.models.architectures.glm4 import glm4
from mxc.compiler.models.architectures.glm4_moe import glm4_moe, solar_open
from mxc.compiler.models.architectures.granite import granite, granite_moe
from mxc.compiler.models.architectures.granite_hybrid import granite_hybrid
from mxc.compiler.models.architectures.hunyuan import hunyuan
from mxc.compiler.models.architectures.kimi_k3 import kimi
from mxc.compiler.models.architectures.lfm2 import lfm2, lfm2_moe
from mxc.compiler.models.architectures.llama import llama
from mxc.compiler.models.architectures.llama4 import llama4
from mxc.compiler.models.architectures.minimax_m2 import minimax_m2
from mxc.compiler.models.architectures.mistral import ministral3, mistral
from mxc.compiler.models.architectures.mistral4 import mistral4
from mxc.compiler.models.architectures.mixtral import mixtral
from mxc.compiler.models.architectures.olmo2 import olmo2, olmo3
from mxc.compiler.models.architectures.olmoe import flex_olmo, olmoe
from mxc.compiler.models.architectures.phi3 import phi3
from mxc.compiler.models.architectures.qwen2 import qwen2
from mxc.compiler.models.architectures.qwen2_moe import qwen2_moe
from mxc.compiler.models.architectures.qwen3 import qwen3
from mxc.compiler.models.architectures.qwen3_moe import qwen3_moe
from mxc.compiler.models.architectures.qwen3_next import qwen3_5, qwen3_5_moe, qwen3_next
from mxc.compiler.models.architectures.refused import missing
from mxc.compiler.models.architectures.seed_oss import seed_oss
from mxc.compiler.models.architectures.smollm3 import smollm3
from mxc.compiler.models.architectures.starcoder2 import starcoder2
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.gpt_oss import parse as parse_gpt_oss
from mxc.compiler.models.decoder import Decoder
from mxc.errors import CheckpointError


@dataclass(frozen=True)
class Architecture:
    """An architecture: its two names in a config, and the function that reads a config.

    `read`: takes config.json and the name of the file for messages. `inside`: model types of the
    same model inside a multimodal wrapper.
    """

    model_type: str
    name: str
    read: Callable[[dict[str, Any], str], Decoder]
    inside: tuple[str, ...] = ()


def _gpt_oss(raw: dict[str, Any], place: str) -> Decoder:
    return gpt_oss.decoder(parse_gpt_oss(raw, place))


def _family(build: Callable[[ConfigFields], Decoder]) -> Callable[[dict[str, Any], str], Decoder]:
    return lambda raw, place: build(ConfigFields(raw, place))


#: In alphabetical order.
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("arcee", "ArceeForCausalLM", _family(arcee)),
    Architecture("cohere2", "Cohere2ForCausalLM", _family(cohere2)),
    Architecture("cwm", "CwmForCausalLM", _family(cwm)),
    Architecture("deepseek_v2", "DeepseekV2ForCausalLM", _family(deepseek_v2)),
    Architecture("deepseek_v3", "DeepseekV3ForCausalLM", _family(deepseek_v3), ("kimi_k2",)),
    Architecture("dots1", "Dots1ForCausalLM", _family(dots1)),
    Architecture("ernie4_5", "Ernie4_5ForCausalLM", _family(ernie4_5)),
    Architecture("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", _family(ernie4_5_moe)),
    Architecture("exaone4", "Exaone4ForCausalLM", _family(exaone4)),
    Architecture("flex_olmo", "FlexOlmoForCausalLM", _family(flex_olmo)),
    Architecture("gemma2", "Gemma2ForCausalLM", _family(gemma2)),
    Architecture("gemma3_text", "Gemma3ForCausalLM", _family(gemma3)),
    Architecture("gemma4_text", "Gemma4ForCausalLM", _family(gemma4)),
    Architecture("gemma4_unified_text", "Gemma4UnifiedForCausalLM", _family(gemma4_unified)),
    Architecture("glm4", "Glm4ForCausalLM", _family(glm4)),
    Architecture("glm4_moe", "Glm4MoeForCausalLM", _family(glm4_moe)),
    Architecture("glm4_moe_lite", "Glm4MoeLiteForCausalLM", _family(glm4_moe_lite)),
    Architecture("gpt_oss", "GptOssForCausalLM", _gpt_oss),
    Architecture("granite", "GraniteForCausalLM", _family(granite)),
    Architecture("granitemoe", "GraniteMoeForCausalLM", _family(granite_moe)),
    Architecture("granitemoehybrid", "GraniteMoeHybridForCausalLM", _family(granite_hybrid)),
    Architecture("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", _family(hunyuan)),
    Architecture("kimi_linear", "KimiLinearForCausalLM", _family(kimi)),
    Architecture("lfm2", "Lfm2ForCausalLM", _family(lfm2)),
    Architecture("lfm2_moe", "Lfm2MoeForCausalLM", _family(lfm2_moe)),
    Architecture("llama", "LlamaForCausalLM", _family(llama)),
    Architecture("llama4_text", "Llama4ForCausalLM", _family(llama4)),
    Architecture("minimax_m2", "MiniMaxM2ForCausalLM", _family(minimax_m2)),
    Architecture("ministral3", "Ministral3ForCausalLM", _family(ministral3)),
    Architecture("mistral", "MistralForCausalLM", _family(mistral)),
    Architecture("mistral4", "Mistral4ForCausalLM", _family(mistral4)),
    Architecture("mixtral", "MixtralForCausalLM", _family(mixtral)),
    Architecture("olmo2", "Olmo2ForCausalLM", _family(olmo2)),
    Architecture("olmo3", "Olmo3ForCausalLM", _family(olmo3)),
    Architecture("olmoe", "OlmoeForCausalLM", _family(olmoe)),
    Architecture("phi3", "Phi3ForCausalLM", _family(phi3)),
    Architecture("qwen2", "Qwen2ForCausalLM", _family(qwen2), ("qwen2_5_vl_text",)),
    Architecture("qwen2_moe", "Qwen2MoeForCausalLM", _family(qwen2_moe)),
    Architecture("qwen3", "Qwen3ForCausalLM", _family(qwen3), ("qwen3_vl_text",)),
    Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _family(qwen3_moe), ("qwen3_vl_moe_text",)),
    Architecture("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _family(qwen3_5_moe)),
    Architecture("qwen3_5_text", "Qwen3_5ForCausalLM", _family(qwen3_5)),
    Architecture("qwen3_next", "Qwen3NextForCausalLM", _family(qwen3_next)),
    Architecture("seed_oss", "SeedOssForCausalLM", _family(seed_oss)),
    Architecture("smollm3", "SmolLM3ForCausalLM", _family(smollm3)),
    Architecture("solar_open", "SolarOpenForCausalLM", _family(solar_open)),
    Architecture("starcoder2", "Starcoder2ForCausalLM", _family(starcoder2)),
)


def read_decoder(config: Mapping[str, Any], place: str) -> Decoder:
    """Return the model that a config describes; place: names the file in messages.

    Raises CheckpointError for an unknown architecture (the message says what is missing, or lists
    the known ones), for names that disagree, and for values that the architecture refuses.
    """
    raw = dict(config)
    names, kind = raw.get("architectures") or [], raw.get("model_type")
    if not isinstance(names, list):
        raise CheckpointError(f"{place}: wanted a list of names for architectures, found {names!r}")
    for found in ARCHITECTURES:
        if kind in (found.model_type, *found.inside) and {*map(str, names)} <= {found.name}:
            return found.read(raw, place)
    said = ", ".join([*map(str, names), f"model_type {kind!r}"])
    if (what := missing(raw)) is not None:
        raise CheckpointError(f"{place}: architecture {said} is not supported: it needs {what}")
    known = ", ".join(f"{each.name} ({each.model_type})" for each in ARCHITECTURES)
    raise CheckpointError(f"{place}: architecture {said} is not supported; supported: {known}")
