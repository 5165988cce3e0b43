#!/usr/bin/env python3
"""The files of examples/clusters do what docs/CLUSTERS.md says of them.

    python3 -B tests/tools/clusters_test.py PROGRAM [--all] [--schemas DIR]

Each file's own commands run here as on two hosts, with the variables that its tool sets, and programs that stand in for
Slurm's (torchrun is the real one). The model is small, and the address of both hosts is this machine's. A run trains on
both hosts, or on the first one while the second and a worker that joins sample: the weights have the SHA-256 of
`tandem train` with two ranks. Runs that are stopped, and one whose rank is killed, go on and end with the same weights;
--all tries that with every tool that can do it.

Files that no tool reads here are held against the tool's schema: JobSet's and Kubernetes' of the package
kubeflow-trainer-api, SkyPilot's of its own package, which `tools/setup.sh clusters` installs. No package has KubeRay's,
so the keys that rayjob.yaml uses are written down below (RAY_JOB). --schemas DIR has the published ones of JobSet
(jobset.x-k8s.io_jobsets.yaml) and of KubeRay (ray.io_rayjobs.yaml), and all files are held against these too. Every
schema also has to refuse planted mistakes. What cannot be tried is said. Exit code 1: something is wrong."""

import argparse
import copy
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from importlib import metadata
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "examples/clusters"
REMEDY = "tools/setup.sh clusters installs it"
SECONDS = 240  # for one run

failures = []
counts = {"passed": 0, "not tried": 0}


def check(holds, says):
    if holds:
        counts["passed"] += 1
    else:
        failures.append(says)
        print(f"FAILED: {says}", flush=True)


def not_tried(what, why):
    counts["not tried"] += 1
    print(f"NOT TRIED: {what}: {why}", flush=True)


# The schemas.


def closed(schema):
    """A schema of objects that have no other keys than those it names, as `kubectl --validate=strict` reads it."""
    if isinstance(schema, list):
        for part in schema:
            closed(part)
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    if len(schema.get("anyOf", ())) == 2 and schema["anyOf"][1] == {"type": "null"}:  # an optional field
        schema.update(schema.pop("anyOf")[0])
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for part in list(schema.values()):
        closed(part)
    return schema


def of_model(model):
    """The schema of a class of kubeflow-trainer-api, where quantities and numbers that may be text are classes too."""
    schema = model.model_json_schema(by_alias=True)
    for name in schema["$defs"]:
        if name.endswith(("ResourceQuantity", "IntOrString")):
            schema["$defs"][name] = {"type": ["string", "number"]}
    return closed(schema)


def skypilot_schemas():
    """The functions of sky.utils.schemas, without the forty packages that the rest of SkyPilot imports."""
    wanted = ("sky.utils.schemas", "sky.skylet.constants", "sky.utils.kubernetes_enums")
    folder = Path(next(iter(importlib.util.find_spec("sky").submodule_search_locations)))

    class StandIns:
        def find_spec(self, name, path, target=None):
            if name.split(".")[0] == "sky" and name not in wanted:
                return importlib.util.spec_from_loader(name, self)
            return None

        def create_module(self, spec):
            module = mock.MagicMock(name=spec.name)
            module.__path__, module.__spec__ = [], spec
            return module

        def exec_module(self, module):
            pass

    for name in ("sky", "sky.skylet", "sky.utils"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    sys.modules["sky"].__version__ = metadata.version("skypilot")
    sys.meta_path.insert(0, StandIns())
    return importlib.import_module("sky.utils.schemas")


def object_of(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def ray_job_schema(pod_template):
    """What rayjob.yaml uses of KubeRay's RayJob (ray.io/v1), around a pod template of Kubernetes."""
    text, number, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    parameters = {"type": "object", "additionalProperties": text}
    head = object_of(["rayStartParams", "template"], rayStartParams=parameters, template={"$ref": "#/pod"})
    group = object_of(["groupName", "rayStartParams", "template"], groupName=text, replicas=number, minReplicas=number,
                      maxReplicas=number, rayStartParams=parameters, template={"$ref": "#/pod"})
    cluster = object_of(["headGroupSpec"], rayVersion=text, headGroupSpec=head,
                        workerGroupSpecs={"type": "array", "items": group})
    spec = object_of(["entrypoint", "rayClusterSpec"], entrypoint=text, backoffLimit=number,
                     shutdownAfterJobFinishes=flag, rayClusterSpec=cluster)
    schema = object_of(["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": "ray.io/v1"},
                       kind={"const": "RayJob"}, metadata=object_of(["name"], name=text), spec=spec)
    return {**schema, "$defs": pod_template.pop("$defs"), "pod": pod_template}


# A mistake: a path of keys to an object, and what is done to it.
def misspelt(path, key):
    return path, lambda holder: holder.__setitem__(key[:-1], holder.pop(key)), f"{key} misspelt"


def wrong(path, key, value):
    return path, lambda holder: holder.__setitem__(key, value), f"{key}: {value!r}"


POD = ("spec", "template", "spec", "containers", 0)
JOB_SET_MISTAKES = [
    misspelt(("spec",), "replicatedJobs"), misspelt(("spec", "failurePolicy"), "maxRestarts"),
    wrong(("spec", "failurePolicy"), "maxRestarts", "twenty"),
    wrong(("spec", "network"), "enableDNSHostnames", "yes please"),
    misspelt(("spec", "replicatedJobs", 0, "template", "spec"), "podFailurePolicy"),
    misspelt(("spec", "replicatedJobs", 0, "template", *POD), "volumeMounts"),
    wrong(("spec", "replicatedJobs", 0, "template", *POD), "env", {"DEVICES": "8"}),
]
JOB_MISTAKES = [misspelt(("spec",), "parallelism"), wrong(("spec",), "backoffLimit", "many"), misspelt(POD, "command"),
                wrong(POD, "command", "bash")]
RAY_HOST = ("spec", "rayClusterSpec", "workerGroupSpecs", 0)
RAY_JOB_MISTAKES = [misspelt(("spec",), "entrypoint"), wrong(("spec",), "shutdownAfterJobFinishes", "yes please"),
                    misspelt(RAY_HOST, "maxReplicas"), wrong(RAY_HOST, "replicas", "two"),
                    misspelt((*RAY_HOST, *POD[1:]), "resources")]
TASK_MISTAKES = [misspelt((), "num_nodes"), wrong((), "num_nodes", "two"), misspelt((), "secrets"),
                 wrong((), "run", ["tandem"]), wrong(("envs",), "DEVICES", 8)]
RESOURCES_MISTAKES = [misspelt((), "accelerators"), wrong((), "accelerators", 8), misspelt((), "job_recovery"),
                      wrong(("job_recovery",), "max_restarts_on_errors", "twenty"),
                      wrong(("job_recovery",), "recover_on_exit_codes", [750])]


def hold_against(what, document, validator, mistakes):
    problems = [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]
    check(not problems, f"{what}: {'; '.join(problems)}")
    for path, make, name in mistakes:
        changed = copy.deepcopy(document)
        holder = changed
        for key in path:
            holder = holder[key]
        make(holder)
        check(not validator.is_valid(changed), f"{what}: a planted mistake is not seen: {name}")


def check_schemas(documents, folder):
    try:
        import jsonschema
    except ImportError:
        return not_tried("the files against the schemas of their tools", f"no jsonschema; {REMEDY}")
    draft = jsonschema.Draft202012Validator
    job_set, workers, ray_job = documents["jobset.yaml"][0], documents["jobset.yaml"][1], documents["rayjob.yaml"][0]
    try:
        from kubeflow_trainer_api import models
        check((workers["apiVersion"], workers["kind"]) == ("batch/v1", "Job"), "jobset.yaml: its second part is no Job")
        hold_against("jobset.yaml", job_set, draft(of_model(models.JobsetV1alpha2JobSet)), JOB_SET_MISTAKES)
        within = [(path[1:], make, name) for path, make, name in JOB_MISTAKES]
        job = draft(of_model(models.IoK8sApiBatchV1JobSpec))
        hold_against("jobset.yaml, the workers", workers["spec"], job, within)
        pods = of_model(models.IoK8sApiCoreV1PodTemplateSpec)
        hold_against("rayjob.yaml", ray_job, draft(ray_job_schema(pods)), RAY_JOB_MISTAKES)
    except ImportError:
        not_tried("jobset.yaml and rayjob.yaml", f"no kubeflow-trainer-api; {REMEDY}")
    if importlib.util.find_spec("sky") is None:
        not_tried("skypilot*.yaml", f"no skypilot; {REMEDY}")
    else:
        schemas = skypilot_schemas()

        def without_case(validator, names, value, schema):
            if value.lower() not in [name.lower() for name in names]:
                yield jsonschema.ValidationError(f"{value} is not one of {names}")

        own = jsonschema.validators.extend(jsonschema.Draft7Validator, {"case_insensitive_enum": without_case})
        task = schemas.get_task_schema()
        task["properties"]["config"] = False  # global settings, which the files do not have
        for name in ("skypilot.yaml", "skypilot_workers.yaml"):
            hold_against(name, documents[name][0], own(task), TASK_MISTAKES)
            hold_against(f"{name}, resources", documents[name][0]["resources"], own(schemas.get_resources_schema()),
                         RESOURCES_MISTAKES)
    if folder is None:
        return None
    import yaml
    for name, file, version, document, mistakes in (
            ("jobset.yaml", "jobset.x-k8s.io_jobsets.yaml", "v1alpha2", job_set, JOB_SET_MISTAKES),
            ("rayjob.yaml", "ray.io_rayjobs.yaml", "v1", ray_job, RAY_JOB_MISTAKES)):
        definition = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
        schema = next(v for v in definition["spec"]["versions"] if v["name"] == version)["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
        schema["properties"].pop("status", None)
        hold_against(f"{name} against {file}", document, draft(closed(schema)), mistakes)
    return None


# Slurm's options that the scripts give, from sbatch's manual, and what their values look like.
SBATCH = {"job-name": r"[\w-]+", "nodes": r"\d+", "ntasks": r"\d+", "ntasks-per-node": r"\d+", "gpus": r"\d+",
          "gpus-per-node": r"\d+", "time": r"\d+:\d\d:\d\d", "signal": r"(B:)?[A-Z]+@\d+", "requeue": "",
          "open-mode": "append|truncate"}


def check_sbatch(name, text):
    for option, value in re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.M):
        check(option in SBATCH and re.fullmatch(SBATCH[option], value), f"{name}: #SBATCH --{option}={value}")
    head = text.split("\nexport", 1)[0]
    check("#SBATCH" in head and "#SBATCH" not in text[len(head):], f"{name}: sbatch reads no option behind a command")


# The runs.


def own_address():
    """This machine's address to others, which nobody is sent anything for; "" where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        try:
            ask.connect(("192.0.2.1", 9))
            address = ask.getsockname()[0]
        except OSError:
            return ""
    return "" if address.startswith("127.") else address


def free_port(address):
    with socket.socket() as ask:
        ask.bind((address, 0))
        return ask.getsockname()[1]


STAND_INS = {
    # It works as srun does: it starts a process for each task, and passes a signal on to all of them.
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
trap 'kill -TERM "${tasks[@]}"' TERM
for ((i = 0; i < SLURM_NTASKS; i++)); do
  SLURM_STEP_ID=0 SLURM_PROCID=$i SLURM_LOCALID=0 SLURM_NODEID=$i SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST "$@" &
  tasks+=($!)
done
code=0
for task in "${tasks[@]}"; do
  wait "$task"
  ended=$?
  while kill -0 "$task" 2>/dev/null; do wait "$task"; ended=$?; done
  [ $ended -eq 0 ] || code=$ended
done
exit $code
""",
    "squeue": "#!/bin/bash\necho \"$FIRST_HOST\"\n",
    "scontrol": "#!/bin/bash\necho \"$@\" >>\"$REQUEUED\"\n",
    "torchrun": f"#!/bin/bash\nexec {shlex.quote(sys.executable)} -m torch.distributed.run \"$@\"\n",
}


class Cluster:
    """A folder that all hosts see, with programs, and the small job in place of job.toml."""

    def __init__(self, folder, program, address):
        self.folder, self.program, self.address = folder, program, address
        self.shared, self.programs = folder / "shared", folder / "bin"
        for path in (self.shared / "runs", self.programs, folder / "home"):
            path.mkdir(parents=True)
        (self.programs / "tandem").symlink_to(program)
        for name, text in STAND_INS.items():
            (self.programs / name).write_text(text, encoding="utf-8")
            (self.programs / name).chmod(0o755)
        self.secret = os.urandom(32).hex()
        for path in (folder / "key", folder / "home/.tandem_secret"):
            path.write_text(self.secret, encoding="utf-8")
            path.chmod(0o400)
        for name, seconds in (("reward", 0), ("slow_reward", 1)):
            (folder / f"{name}.py").write_text("import time\n\ndef reward(prompts, completions, **kwargs):\n"
                                               f"    time.sleep({seconds})\n"
                                               "    return [float(len(c[0]['content']) % 5) for c in completions]\n",
                                               encoding="utf-8")

    def job(self, save, rollouts=2, trains_on_both=False, reward="reward"):
        """job.toml with another model and smaller numbers. Every key that it changes has to be there."""
        text = (CLUSTERS / "job.toml").read_text(encoding="utf-8")
        values = {"hf-checkpoint": str(ROOT / "tests/golden/models/qwen3-tied"),
                  "prompt-data": str(ROOT / "tests/golden/prompts/math_small.jsonl"), "device": "cpu",
                  "rollout-batch-size": 3, "n-samples-per-prompt": 4, "global-batch-size": 6, "num-rollout": rollouts,
                  "lr": 1e-3, "actor-num-gpus-per-node": 1, "rollout-num-gpus": 1, "rollout-listen": self.join_port,
                  "save": str(save), "load": str(save), "save-interval": 1}
        for key, value in values.items():
            text, found = re.subn(rf"^{key} = .*$", f"{key} = {json.dumps(value)}", text, flags=re.M)
            check(found == 1, f"job.toml has no {key}")
        text = text.replace('rm-type = "exact"', f'custom-rm-path = "{self.folder}/{reward}.py:reward"')
        if trains_on_both:  # as the file says
            text = re.sub(r"^(actor-num-gpus-per-node|rollout-num-gpus|rollout-listen) = .*\n", "", text, flags=re.M)
            text += "colocate = true\n"
        return text + 'rollout-max-response-len = 12\ndtype = "float32"\nnum-threads = 1\nuse-tensorboard = false\n'

    def begin(self, name, **job):
        """A run of that name: its ports, and the folder that its hosts work in."""
        self.save = self.shared / "runs" / name
        self.port, self.join_port = free_port(self.address), free_port(self.address)
        self.work = self.folder / f"work_{name}"
        self.work.mkdir()
        (self.work / "job.toml").write_text(self.job(self.save, **job), encoding="utf-8")
        shutil.copy(CLUSTERS / "keep_going.sh", self.work)

    def placed(self, script):
        """The script with the paths and ports of this test."""
        places = {"/shared/runs/x": self.save, "/shared": self.shared, "/job/": f"{self.work}/", "29500": self.port,
                  "29600": self.join_port}
        return re.sub("|".join(places), lambda found: str(places[found.group()]), script)

    def start(self, name, script, arguments=(), **variables):
        """The script as on a host of its own, with what it prints in a file."""
        kept = ("LANG", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS")
        environment = {key: os.environ[key] for key in kept if key in os.environ}
        environment.update(PATH=f"{self.programs}:{os.environ['PATH']}", HOME=str(self.folder / "home"),
                           OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", **variables)
        output = self.work / f"{name}.out"
        with open(output, "w", encoding="utf-8") as out:
            process = subprocess.Popen(["bash", "-c", self.placed(script), name, *arguments], cwd=self.work,
                                       env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        process.output = output
        return process

    def end(self, what, processes, codes=(0,)):
        """Waits for all; each is to end with one of the codes."""
        until = time.monotonic() + SECONDS
        for process in processes:
            try:
                code = process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "no end"
            said = process.output.read_text(encoding="utf-8", errors="replace")
            check(code in codes, f"{what}: {process.output.name} ends with {code}: {said[-1500:]}")

    def weights(self):
        path = self.save / "hf/latest/model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"

    def log(self):
        path = self.save / "log.txt"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def wait_until(self, holds, what):
        until = time.monotonic() + SECONDS
        while not holds():
            if time.monotonic() > until:
                return check(False, f"{what}: has not come")
            time.sleep(0.02)
        return None


def container(spec):
    return spec["template"]["spec"]["containers"][0]


def kubernetes(documents):
    """(commands of the two hosts, that of a worker): functions that start them."""
    job_set, workers = documents["jobset.yaml"]
    group = job_set["spec"]["replicatedJobs"][0]
    # JobSet names the pods of a Job NAME-GROUP-JOB-INDEX, in the subdomain.
    first = f"{job_set['metadata']['name']}-{group['name']}-0-0.{job_set['spec']['network']['subdomain']}"
    for spec in (group["template"]["spec"], workers["spec"]):
        given = {entry["name"]: entry["value"] for entry in container(spec)["env"]}
        check(given["FIRST_HOST"] == first, f"jobset.yaml: FIRST_HOST is {given['FIRST_HOST']}, not {first}")
        secret = [v for v in spec["template"]["spec"]["volumes"] if v["name"] == "secret"][0]["secret"]
        check(secret["defaultMode"] == 0o400, "jobset.yaml: others may read the secret")
        mounts = {mount["name"]: mount["mountPath"] for mount in container(spec)["volumeMounts"]}
        check(given["TANDEM_SECRET_FILE"] == f"{mounts['secret']}/key", "jobset.yaml: the secret is mounted elsewhere")
    spec = group["template"]["spec"]
    check(spec["parallelism"] == spec["completions"] == 2, "jobset.yaml: not two pods")

    def start(cluster, name, spec, **variables):
        command = container(spec)["command"]
        check(command[:2] == ["bash", "-c"], "jobset.yaml: the command is no script of bash")
        return cluster.start(name, command[2], FIRST_HOST=cluster.address, DEVICES="1",
                             TANDEM_SECRET_FILE=str(cluster.folder / "key"), **variables)

    return (lambda cluster: [start(cluster, f"host_{i}", spec, JOB_COMPLETION_INDEX=str(i)) for i in range(2)],
            lambda cluster: start(cluster, "worker", workers["spec"]))


def skypilot(documents):
    task, workers = documents["skypilot.yaml"][0], documents["skypilot_workers.yaml"][0]
    check(task["num_nodes"] == 2, "skypilot.yaml: not two hosts")

    def start(cluster, name, task, **variables):
        # Each of its hosts has a home directory of its own.
        script = f"export HOME={cluster.work}/{name}; mkdir -p $HOME\n{task['run']}"
        variables = {**task["envs"], "DEVICES": "1", **variables}
        process = cluster.start(name, script, TANDEM_SECRET=cluster.secret, **variables)
        process.secret = cluster.work / name / ".tandem_secret"
        return process

    def hosts(cluster):
        variables = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": f"{cluster.address}\n{cluster.address}"}
        return [start(cluster, f"host_{i}", task, SKYPILOT_NODE_RANK=str(i), **variables) for i in range(2)]

    return hosts, lambda cluster: start(cluster, "worker", workers, FIRST_HOST=cluster.address)


def slurm(documents):
    def start(cluster, name, file, tasks, **variables):
        return cluster.start(name, (CLUSTERS / file).read_text(encoding="utf-8"), FIRST_HOST=cluster.address,
                             REQUEUED=str(cluster.work / "requeued"), SLURM_JOB_ID=str(cluster.port),
                             SLURM_NTASKS=str(tasks), SLURM_TASKS_PER_NODE="1(x2)" if tasks == 2 else "1",
                             SLURM_JOB_NODELIST=",".join([cluster.address] * tasks), **variables)

    return (lambda cluster: [start(cluster, "hosts", "slurm.sh", 2)],
            lambda cluster: start(cluster, "worker", "slurm_workers.sh", 1, RUN_JOB="4711"))


def torchrun(documents):
    def hosts(cluster):
        script = (CLUSTERS / "torchrun.sh").read_text(encoding="utf-8")
        return [cluster.start(f"host_{i}", script, (str(i), cluster.address), DEVICES="1") for i in range(2)]

    script = (CLUSTERS / "torchrun_worker.sh").read_text(encoding="utf-8")
    return hosts, lambda cluster: cluster.start("worker", script, (cluster.address,))


TOOLS = {"kubernetes": kubernetes, "skypilot": skypilot, "slurm": slurm, "torchrun": torchrun}


def want(cluster, rollouts):
    """The SHA-256 of the weights of two ranks of one machine."""
    cluster.begin(f"plain_{rollouts}", rollouts=rollouts, trains_on_both=True)
    plain = cluster.start("plain", "exec tandem train --config job.toml --actor-num-gpus-per-node 2")
    cluster.end("tandem train", [plain])
    return cluster.weights()


def actor_flags(cluster, name):
    """With Slurm and torchrun, whose processes are started one by one, the job says how many hosts train."""
    if name in ("slurm", "torchrun"):
        with open(cluster.work / "job.toml", "a", encoding="utf-8") as job:
            job.write("actor-num-nodes = 2\n")


def check_tool(cluster, name, tool, sums):
    hosts, worker = tool
    cluster.begin(f"{name}_both", trains_on_both=True)
    actor_flags(cluster, name)
    cluster.end(f"{name}, both hosts train", hosts(cluster))
    check(cluster.weights() == sums[2], f"{name}, both hosts train: other weights than those of two ranks")

    cluster.begin(name)
    joins = worker(cluster)  # it waits for the run
    processes = hosts(cluster)
    cluster.end(f"{name}, a worker joins", [*processes, joins])
    check(cluster.weights() == sums[2], f"{name}, a worker joins: other weights than those of two ranks")
    check("has joined" in cluster.log(), f"{name}: no worker has joined: {joins.output.read_text(encoding='utf-8')}")
    for process in [*processes, joins]:
        if hasattr(process, "secret"):
            check(process.secret.stat().st_mode & 0o777 == 0o600, f"{name}: others may read {process.secret.name}")
    check(not (cluster.work / "requeued").exists(), f"{name}: a run that has ended is started again")


def check_stopped(cluster, name, tool, sums, rollouts):
    """SIGTERM to one host's command: nobody takes the run for finished, and the same commands end it."""
    hosts, _ = tool
    cluster.begin(f"{name}_stopped", rollouts=rollouts, trains_on_both=True)
    actor_flags(cluster, name)
    processes = hosts(cluster)
    cluster.wait_until(lambda: "rollout 2/" in cluster.log(), f"{name}: rollout 2")
    if name == "slurm":  # which signals the tasks
        for pid in children_of(processes[0].pid, "srun"):
            os.kill(pid, signal.SIGTERM)
    else:
        processes[0].send_signal(signal.SIGTERM)
    cluster.end(f"{name}, stopped", processes, (75,))
    check("stopped after" in cluster.log(), f"{name}: the run was not stopped in its middle")
    if name == "slurm":
        says = (cluster.work / "requeued").read_text(encoding="utf-8") if (cluster.work / "requeued").exists() else ""
        check(says == f"requeue {cluster.port}\n", f"slurm: a stopped job is not put back into the queue: {says!r}")
    cluster.end(f"{name}, goes on", hosts(cluster))
    check(cluster.weights() == sums[rollouts], f"{name}, goes on: other weights than those of an undisturbed run")


def check_leaves(cluster, name, tool, sums, rollouts):
    """SIGTERM to a worker's command: it leaves, nobody takes the run for finished, and the run goes on."""
    hosts, worker = tool
    # A quick run would be over before keep_going.sh looks.
    cluster.begin(f"{name}_left", rollouts=rollouts, reward="slow_reward")
    leaves = worker(cluster)
    processes = hosts(cluster)
    cluster.wait_until(lambda: cluster.log().count("has joined") == 2 and "rollout 1/" in cluster.log(),
                       f"{name}: two workers")
    leaves.send_signal(signal.SIGTERM)
    cluster.end(f"{name}, a worker leaves", [leaves], (75,))
    cluster.end(f"{name}, after a worker has left", processes)
    check(cluster.weights() == sums[rollouts], f"{name}, a worker leaves: other weights than those of two ranks")


def children_of(pid, program):
    """The processes below this one that run the program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[1])
            words = path.with_name("cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == pid:
            found += children_of(int(path.parent.name), program)
            if any(Path(os.fsdecode(word)).name == program for word in words[:2]):
                found.append(int(path.parent.name))
    return found


def check_killed(cluster, tool, sums, rollouts):
    """Under torchrun a rank is killed: torchrun starts the ranks of both hosts again."""
    hosts, _ = tool
    cluster.begin("torchrun_killed", rollouts=rollouts, trains_on_both=True)
    actor_flags(cluster, "torchrun")
    processes = hosts(cluster)
    cluster.wait_until(lambda: "rollout 2/" in cluster.log(), "torchrun: rollout 2")
    for pid in children_of(processes[1].pid, "tandem"):
        os.kill(pid, signal.SIGKILL)
    cluster.end("torchrun, a rank killed", processes)
    check(cluster.weights() == sums[rollouts], "torchrun, a rank killed: other weights than undisturbed")


def check_ray(cluster, documents):
    """Ray's entrypoint has the flags of tandem train."""
    entrypoint = documents["rayjob.yaml"][0]["spec"]["entrypoint"]
    begins = "python3 -m tandem.ray train "
    check(entrypoint.startswith(begins), f"rayjob.yaml: the entrypoint is {entrypoint}")
    cluster.begin("ray", trains_on_both=True)
    ran = cluster.start("entrypoint", f"exec tandem train {entrypoint.removeprefix(begins)} --dry-run")
    cluster.end("rayjob.yaml", [ran])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--all", action="store_true", help="stops, departures and restarts with every tool, not with one")
    given = parser.parse_args()
    documents = {}
    try:
        import yaml
        for path in CLUSTERS.glob("*.yaml"):
            documents[path.name] = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        check_schemas(documents, given.schemas)
    except ImportError:
        not_tried("every .yaml of examples/clusters", f"no PyYAML; {REMEDY}")
    for path in CLUSTERS.glob("slurm*.sh"):
        check_sbatch(path.name, path.read_text(encoding="utf-8"))
    keep_going = (CLUSTERS / "keep_going.sh").read_text(encoding="utf-8")
    page = (ROOT / "docs/RUNS.md").read_text(encoding="utf-8")
    check(f"```bash\n{keep_going}```" in page, "docs/RUNS.md shows another script than keep_going.sh")

    address = own_address()
    if not address:
        not_tried("the commands of the files", "this machine has no address but 127.0.0.1")
    else:
        with tempfile.TemporaryDirectory() as name:
            cluster = Cluster(Path(name), given.program.resolve(), address)
            sums = {rollouts: want(cluster, rollouts) for rollouts in (2, 12)}
            check(len(set(sums.values())) == 2 and "none" not in sums.values(), "the small job learns nothing")
            for tool_name, tool in TOOLS.items():
                if tool_name in ("kubernetes", "skypilot") and not documents:
                    continue
                if tool_name == "torchrun" and subprocess.run(
                        [sys.executable, "-c", "import torch.distributed.run"], capture_output=True).returncode != 0:
                    not_tried("torchrun.sh", "this Python does not import torch: a torchrun of your own runs it")
                    continue
                begin = time.monotonic()
                parts = tool(documents)
                check_tool(cluster, tool_name, parts, sums)
                if tool_name == "slurm" or given.all and tool_name == "kubernetes":
                    check_stopped(cluster, tool_name, parts, sums, 12)
                if tool_name == "kubernetes" or given.all and tool_name == "skypilot":
                    check_leaves(cluster, tool_name, parts, sums, 12)
                if tool_name == "torchrun":
                    check_killed(cluster, parts, sums, 12)
                print(f"{tool_name}: {time.monotonic() - begin:.1f} s", flush=True)
            if documents:
                check_ray(cluster, documents)
    print(f"{counts['passed']} passed, {len(failures)} failed, {counts['not tried']} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
