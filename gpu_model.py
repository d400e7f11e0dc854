import sys, json, shutil
from pathlib import Path
import torch

sys.path[:0] = ["benchmarks"]
from llama_prompts import SHAPES, VOCABULARY
from safetensors.torch import save_file

shape = SHAPES[sys.argv[1]]
out = Path(sys.argv[2])
tok = Path(sys.argv[3])
out.mkdir(exist_ok=True)
w, f, L, h, kv = (shape[k] for k in ("width", "feedforward", "layers", "heads", "kv_heads"))
hd = w // h
g = torch.Generator(device="cuda").manual_seed(0)


def r(*s):
    return (torch.randn(*s, device="cuda", generator=g) * 0.02).bfloat16().cpu()


t = {"model.embed_tokens.weight": r(VOCABULARY, w), "model.norm.weight": torch.ones(w).bfloat16()}
for i in range(L):
    p = f"model.layers.{i}."
    t |= {
        p + "self_attn.q_proj.weight": r(w, w),
        p + "self_attn.k_proj.weight": r(kv * hd, w),
        p + "self_attn.v_proj.weight": r(kv * hd, w),
        p + "self_attn.o_proj.weight": r(w, w),
        p + "mlp.gate_proj.weight": r(f, w),
        p + "mlp.up_proj.weight": r(f, w),
        p + "mlp.down_proj.weight": r(w, f),
        p + "input_layernorm.weight": torch.ones(w).bfloat16(),
        p + "post_attention_layernorm.weight": torch.ones(w).bfloat16(),
    }
save_file(t, str(out / "model.safetensors"), {"format": "pt"})
c = json.loads((tok / "config.json").read_text())
c |= {
    "hidden_size": w,
    "intermediate_size": f,
    "num_hidden_layers": L,
    "num_attention_heads": h,
    "num_key_value_heads": kv,
    "torch_dtype": "bfloat16",
    "head_dim": hd,
    "max_position_embeddings": 8192,
}
(out / "config.json").write_text(json.dumps(c))
for p in tok.iterdir():
    if p.name not in ("config.json",) and not p.name.endswith(".safetensors"):
        shutil.copy(p, out / p.name)
