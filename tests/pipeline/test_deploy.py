"""What deploy/ holds is well formed, agrees with the project, and holds no secret.

`KUBERAY_CRDS`, or else `../shared/schemas`, is a folder with KubeRay's custom resource definitions
(`ray.io_rayclusters.yaml` and `ray.io_rayjobs.yaml`, also .gz): where it is there, the manifests
are checked against them, unknown keys refused.
"""

import gzip
import importlib.metadata
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = {"kuberay-cluster.yaml": "rayclusters", "kuberay-job.yaml": "rayjobs"}
CRDS = Path(os.environ.get("KUBERAY_CRDS") or ROOT.parent / "shared" / "schemas")


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown keys refused, as a typing error is: Kubernetes drops them."""
    made = dict(schema)
    if made.get("x-kubernetes-int-or-string"):
        made = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in made:
        made["properties"] = {key: closed(value) for key, value in made["properties"].items()}
        if not made.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = closed(made[key])
    return made


@pytest.mark.skipif(not CRDS.is_dir(), reason="KUBERAY_CRDS names no folder of definitions")
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_what_kuberay_defines(name: str) -> None:
    (file,) = CRDS.glob(f"ray.io_{MANIFESTS[name]}.yaml*")
    data = file.read_bytes()
    crd = yaml.safe_load(gzip.decompress(data) if file.suffix == ".gz" else data)
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    manifest = read(name)
    jsonschema.validate(manifest, schema)
    manifest["spec"]["headGruopSpec"] = {}
    with pytest.raises(jsonschema.ValidationError, match="headGruopSpec"):
        jsonschema.validate(manifest, schema)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_agree_with_the_project(name: str) -> None:
    manifest = read(name)
    assert manifest["apiVersion"] == "ray.io/v1"
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"\nray=={spec['rayVersion']}\n" in constraints
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert mounts == {"shared": "/shared", "memory": "/dev/shm", "copies": "/copies"}
        assert {volume["name"] for volume in pod["volumes"]} == set(mounts)
        own = {variable["name"]: variable["value"] for variable in container["env"]}
        assert own.keys() == {"ELMO_CACHE", "ELMO_CACHE_GB"}  # others come from the secret
        (volume,) = (one for one in pod["volumes"] if one["name"] == "copies")
        limit = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
        assert own["ELMO_CACHE"] == "/copies" and float(own["ELMO_CACHE_GB"]) * 1e9 < 0.9 * limit
        # What Kubernetes' policy "restricted" asks for, also of the container that KubeRay adds.
        own = pod["securityContext"]
        assert own["runAsNonRoot"] and own["seccompProfile"] == {"type": "RuntimeDefault"}
        added = spec.get("autoscalerOptions", container)
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == added["securityContext"] == restricted
        has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        assert ("nvidia.com/gpu" in [one["key"] for one in pod.get("tolerations", ())]) == has_gpu
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    if "entrypoint" in manifest["spec"]:
        from pipeline.settings.cluster import load

        sent = yaml.safe_load(manifest["spec"]["runtimeEnvYAML"])["env_vars"]
        assert all(isinstance(value, str) for value in sent.values())
        with pytest.MonkeyPatch.context() as patch:
            for key, value in sent.items():
                patch.setenv(key, value)
            cluster, _ = load(Path("no such file"))
        largest = spec["workerGroupSpecs"][0]
        cores = int(largest["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        assert cluster.workers <= largest["maxReplicas"] and cluster.cpus <= cores


def test_the_vm_cluster_is_what_rays_launcher_reads() -> None:
    package = importlib.metadata.distribution("ray").locate_file("ray/autoscaler/ray-schema.json")
    config = read("vm-cluster.yaml")
    jsonschema.validate(config, json.loads(Path(str(package)).read_text()))
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    commands = config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    assert sum("RAY_AUTH_MODE=token" in line for line in commands) == 2


def test_compose_publishes_on_loopback_and_holds_no_secret() -> None:
    compose = read("compose.yaml")
    services = compose["services"]
    assert {"head", "worker", "mlflow", "postgres", "s3"} <= services.keys()
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for name in service.get("depends_on", ()):
            assert name in services
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose["volumes"]
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", name):
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), name
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"://[^/\s]+:[^/\s]+@", text)  # a password in an address


def test_the_image_takes_what_is_there() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    let_through = (ROOT / ".dockerignore").read_text().split()
    sources = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists() and f"!{source}" in let_through
    extras = importlib.metadata.metadata("elmo-pipeline").get_all("Provides-Extra")
    text = (ROOT / "pyproject.toml").read_text()
    (named,) = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(lines))
    assert extras and all(f"\n{extra} = [" in text for extra in named.split(","))
