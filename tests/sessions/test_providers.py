"""A provider is used only where it really runs; where not, the CPU is, and a sentence says why."""

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from overflow_fixer.sessions.providers import (
    EXECUTION_PROVIDERS,
    PLUGIN_DOMAIN,
    ChosenProvider,
    Provider,
    _shorten,
    choose_provider,
    find_lack,
    find_ordinary_ops,
    has_plugins,
    list_providers,
)

GPU_PROVIDERS: tuple[Provider, ...] = ("cuda", "tensorrt")
every_gpu_provider = pytest.mark.parametrize("provider", GPU_PROVIDERS)
CUDA_ERROR = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t<THRW, void, "
    "onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*) [with ERRTYPE = cudaError] CUDA "
    "failure 35: CUDA driver version is insufficient for CUDA runtime version ; GPU=-1 ; hostname=vm ; "
    "file=/onnxruntime_src/cuda_execution_provider.cc ; line=355 ; expr=cudaSetDevice(info_.device_id);"
)


def _skip_where_installed(provider: Provider) -> None:
    if EXECUTION_PROVIDERS[provider] in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has the {provider} provider")


def test_the_cpu_is_never_tried_and_lacks_nothing() -> None:
    assert choose_provider("cpu") == ChosenProvider("cpu")


@every_gpu_provider
def test_an_onnxruntime_without_the_provider_gives_the_cpu_and_one_sentence(provider: Provider) -> None:
    _skip_where_installed(provider)
    chosen = choose_provider(provider)
    assert chosen.provider == "cpu"
    assert chosen.lack is not None
    assert "onnxruntime-gpu" in chosen.lack
    assert onnxruntime.__version__ in chosen.lack
    assert chosen.lack.endswith(".")
    assert "\n" not in chosen.lack


@every_gpu_provider
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_is_listed_but_does_not_load_is_told_with_the_library_that_is_missing(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _skip_where_installed(provider)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(EXECUTION_PROVIDERS.values()))
    lack = find_lack(provider)
    assert lack is not None
    assert f"libonnxruntime_providers_{provider}.so: cannot open shared object file" in lack
    assert capfd.readouterr() == ("", "")


def test_cuda_runs_in_true_fp32_and_leaves_the_rest_to_the_cpu() -> None:
    (name, options), cpu = list_providers("cuda")
    assert (name, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["use_tf32"] == "0"
    assert (
        options["cudnn_conv_algo_search"] == "DEFAULT"
    )  # others fall back to TF32, and say so in a log alone


def test_tensorrt_takes_plug_ins_alone() -> None:
    names = [name for name, _ in list_providers("tensorrt", ["Relu", "Conv", "Relu"])[:2]]
    assert names == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    assert list_providers("tensorrt", ["Relu", "Conv", "Relu"])[0][1] == {
        "trt_op_types_to_exclude": "Conv,Relu"
    }


def test_ordinary_operators_are_found_in_bodies_and_plug_ins_are_none() -> None:
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, [1])
    nodes = [
        helper.make_node("Neg", ["x"], ["v"]),
        helper.make_node("Inner_TRT", ["v"], ["w"], domain=PLUGIN_DOMAIN),
    ]
    body = helper.make_graph(nodes, "body", [], [value])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    plugin = helper.make_node("EfficientNMS_TRT", ["y"], ["z"], domain=PLUGIN_DOMAIN)
    other = helper.make_node("Gelu", ["y"], ["u"], domain="com.microsoft")
    graph = helper.make_graph([branch, plugin, other], "g", [], [])
    assert find_ordinary_ops(graph) == {"If", "Neg", "Gelu"}
    assert find_ordinary_ops(onnx.GraphProto()) == set()
    assert has_plugins(helper.make_graph([branch], "g", [], []))
    assert not has_plugins(helper.make_graph([other], "g", [], []))


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (CUDA_ERROR, "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version"),
        (
            "CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED ; GPU=0",
            "CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED",
        ),
        ("no kernel image.\nmore", "no kernel image"),
        ("", "RuntimeError"),
    ],
)
def test_of_a_long_error_cuda_s_own_words_are_kept(text: str, short: str) -> None:
    assert _shorten(RuntimeError(text)) == short
