"""Generated output of `nvidia-smi -q -x`, reduced to the elements that are parsed, and a fake NVML library.

The format is that of influxdata/telegraf (plugins/inputs/nvidia_smi/testdata: a100-sxm4-v12.xml,
pro-6000-maxq-blackwell-v13.xml).
"""

import shutil
import subprocess
from pathlib import Path

import pytest

_GPU = """
<gpu id="00000000:{bus}:00.0">
  <product_name>{name}</product_name>
  <persistence_mode>{persistence}</persistence_mode>
  <mig_mode><current_mig>{mig}</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
  <uuid>GPU-{uuid}</uuid>
  <gpu_recovery_action>{recovery}</gpu_recovery_action>
  <pci>
    <pci_gpu_link_info>
      <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>{gen}</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>{width}x</current_link_width></link_widths>
    </pci_gpu_link_info>
  </pci>
  <performance_state>{performance}</performance_state>
  <clocks_event_reasons>
    <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
    <clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
    <clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
    <clocks_event_reason_hw_thermal_slowdown>{hot}</clocks_event_reason_hw_thermal_slowdown>
    <clocks_event_reason_hw_power_brake_slowdown>{brake}</clocks_event_reason_hw_power_brake_slowdown>
    <clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
  </clocks_event_reasons>
  <fb_memory_usage><total>81559 MiB</total><reserved>870 MiB</reserved><used>{used} MiB</used></fb_memory_usage>
  <compute_mode>{compute}</compute_mode>
  <ecc_mode><current_ecc>{ecc}</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
  <ecc_errors>
    <volatile>
      <sram_correctable>9</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_uncorrectable>{errors}</dram_uncorrectable>
    </volatile>
    <aggregate>
      <sram_uncorrectable_parity>0</sram_uncorrectable_parity><dram_uncorrectable>{ever}</dram_uncorrectable>
    </aggregate>
  </ecc_errors>
  <retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
  <remapped_rows>
    <remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>{failed}</remapped_row_failure>
  </remapped_rows>
  <temperature>
    <gpu_temp>{heat} C</gpu_temp><gpu_temp_tlimit>N/A</gpu_temp_tlimit>
    <gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold>
  </temperature>
  <gpu_power_readings>
    <current_power_limit>{watts}.00 W</current_power_limit><default_power_limit>700.00 W</default_power_limit>
  </gpu_power_readings>
  <fabric><state>{fabric}</state><status>N/A</status></fabric>
  <processes>{processes}</processes>
</gpu>"""
_PROCESS = """
<process_info>
  <pid>{pid}</pid><type>{kind}</type><process_name>python</process_name><used_memory>{memory}</used_memory>
</process_info>"""
_WELL = {
    "bus": "1B",
    "name": "NVIDIA H100 80GB HBM3",
    "persistence": "Enabled",
    "mig": "Disabled",
    "uuid": "11111111-aaaa",
    "recovery": "None",
    "gen": 1,
    "width": 16,
    "performance": "P8",
    "hot": "Not Active",
    "brake": "Not Active",
    "used": 4,
    "compute": "Default",
    "ecc": "Enabled",
    "errors": 0,
    "ever": 0,
    "pending": "No",
    "failed": "No",
    "heat": 31,
    "watts": 700,
    "fabric": "Completed",
    "processes": "",
}


def gpu(**other):
    """Return one healthy idle GPU, changed by ``other``."""
    return _GPU.format(**_WELL | other)


def process(pid, kind="C", memory="516 MiB"):
    return _PROCESS.format(pid=pid, kind=kind, memory=memory)


def answer(*gpus):
    """Return the whole document as bytes."""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>{len(gpus)}</attached_gpus>
  {"".join(gpus)}
</nvidia_smi_log>""".encode()


def tree(folder, *gpus, on_bus=None, driver="nvidia"):
    """Write a recorded host: nvidia-smi's output, and ``on_bus`` GPUs on the PCI bus (default: as many)."""
    if gpus:
        (folder / "nvidia-smi.xml").write_bytes(answer(*gpus))
    buses = [f"0000:{n}b:00.0" for n in range(1, 1 + (len(gpus) if on_bus is None else on_bus))]
    for bus in buses:
        device = folder / "sys/bus/pci/devices" / bus
        device.mkdir(parents=True)
        for name, text in {
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "numa_node": "0",
        }.items():
            (device / name).write_text(text + "\n")
        if driver:
            (folder / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(f"../../drivers/{driver}")
    return str(folder)


def library(folder):
    """Compile nvml.c into libnvidia-ml.so.1 in ``folder``, and return the folder."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to compile the fake NVML library")
    source = Path(__file__).with_name("nvml.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True
    )
    return folder
