"""Networks for images and films: of timm, and of torchvision and transformers what timm lacks."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.model import BenchmarkModel, Feeds
from benchmarks.networks.exports import MakeModule, export, first_output

_TIMM = {
    "VGG-11": "vgg11",
    "HRNet-W18-S": "hrnet_w18_small",
    "RepVGG-A0": "repvgg_a0",
    "Res2Net-50": "res2net50_14w_8s",
    "ResNet-18": "resnet18",
    "DPN-68": "dpn68",
    "EdgeNeXt-S": "edgenext_small",
    "NFNet-L0": "nfnet_l0",
    "EfficientFormer-L1": "efficientformer_l1",
    "LCNet-050": "lcnet_050",
    "EfficientNetV2-B0": "tf_efficientnetv2_b0",
    "FastViT-T8": "fastvit_t8",
    "ConvNeXt V2-A": "convnextv2_atto",
    "LeViT-128S": "levit_128s",
    "PVT v2-B0": "pvt_v2_b0",
    "CoaT-Lite-T": "coat_lite_tiny",
    "PoolFormer-S12": "poolformer_s12",
    "GhostNet": "ghostnet_100",
    "MobileViT-S": "mobilevit_s",
    "Inception v3": "inception_v3",
    "MobileNetV2": "mobilenetv2_100",
    "RegNetY-400MF": "regnety_004",
    "XCiT-T12": "xcit_tiny_12_p16_224",
    "MLP-Mixer-S/16": "mixer_s16_224",
}


def _network(make: MakeModule, shape: tuple[int, ...] = (1, 3, 224, 224)) -> BenchmarkModel:
    return BenchmarkModel(lambda: export(make, {"image": shape}), lambda rng: _draw(rng, shape))


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Feeds:
    return {"image": rng.standard_normal(shape, np.float32)}


def _make_timm(name: str) -> Any:
    return import_module("timm").create_model(name)


def _make_torchvision(module: str, name: str, **options: Any) -> Any:
    return getattr(import_module(f"torchvision.models{module}"), name)(weights=None, **options)


def _make_segmentation(name: str) -> Any:
    return first_output(_make_torchvision(".segmentation", name, weights_backbone=None))


def _make_segformer() -> Any:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return first_output(SegformerForSemanticSegmentation(SegformerConfig()))


IMAGES: dict[str, BenchmarkModel] = {
    **{label: _network(partial(_make_timm, name)) for label, name in _TIMM.items()},
    "GoogLeNet": _network(partial(_make_torchvision, "", "googlenet", init_weights=False)),
    "R3D-18": _network(partial(_make_torchvision, ".video", "r3d_18"), (1, 3, 16, 112, 112)),
    "DeepLabV3, MobileNetV3": _network(
        partial(_make_segmentation, "deeplabv3_mobilenet_v3_large"), (1, 3, 320, 320)
    ),
    "FCN, ResNet-50": _network(partial(_make_segmentation, "fcn_resnet50"), (1, 3, 320, 320)),
    "SegFormer-B0 at 512": _network(_make_segformer, (1, 3, 512, 512)),
}
