/* Stands for libnvidia-ml.so.1 where there is no GPU: two GPUs joined by NVLink, of which the second is ill.
   Numbers of errors and structures as in NVIDIA's nvml.h (13.0). Functions that are left out are those that an old
   driver does not have. HANGS makes the first call never return, as a driver does whose GPU is stuck. */
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15, UNKNOWN = 999 };
typedef struct device *Device;
static int number(Device device) { return (int)(size_t)device - 1; }

int nvmlInitWithFlags(unsigned flags) {
    if (getenv("NVML_HANGS")) sleep(600);
    return getenv("NVML_NOT_LOADED") ? 9 : SUCCESS;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.95.05"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = getenv("NVML_NO_DEVICES") ? 0 : 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    *device = (Device)(size_t)(index + 1);
    return index < 2 ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetName(Device device, char *text, unsigned size) { snprintf(text, size, "NVIDIA H100"); return SUCCESS; }
int nvmlDeviceGetUUID(Device device, char *text, unsigned size) {
    snprintf(text, size, "GPU-0000000%d-1111-2222-3333-444444444444", number(device));
    return SUCCESS;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };
int nvmlDeviceGetPciInfo_v3(Device device, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->text, sizeof pci->text, "00000000:%dA:00.0", 1 + number(device));
    return SUCCESS;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(Device device, struct memory *memory) {
    memory->total = 80ull << 30; memory->used = 3ull << 30; memory->free = 77ull << 30;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *c) { *c = number(device) ? 88 : 31; return SUCCESS; }
int nvmlDeviceGetTemperatureThreshold(Device device, int which, unsigned *c) { *c = 90; return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *bits) {
    *bits = number(device) ? 0x08 | 0x40 : 0x01;
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *mw) { *mw = number(device) ? 350000 : 700000; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(Device device, unsigned *mw) { *mw = 700000; return SUCCESS; }
int nvmlDeviceGetPerformanceState(Device device, int *state) { *state = 0; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(Device device, int *on) { *on = 1; return SUCCESS; }
int nvmlDeviceGetEccMode(Device device, int *now, int *then) { *now = *then = 1; return SUCCESS; }
int nvmlDeviceGetTotalEccErrors(Device device, int kind, int since, unsigned long long *count) {
    *count = number(device) ? 2 : 0;
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *un, unsigned *pending, unsigned *failed) {
    *corrected = *un = *failed = 0;
    *pending = number(device);
    return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Device device, int *pending) { return NOT_SUPPORTED; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned *g) { *g = 5; return number(device) ? GPU_IS_LOST : 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned *g) { *g = 5; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *w) { *w = number(device) ? 8 : 16; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *w) { *w = 16; return SUCCESS; }
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *up) {
    *up = !(number(device) && link == 3);
    return link < 18 ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned *version) { *version = 6; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, int *kind) { *kind = link < 16 ? 2 : 0; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, struct pci *pci) {
    return nvmlDeviceGetPciInfo_v3((Device)(size_t)(2 - number(device)), pci);
}
static unsigned long long value(Device device, unsigned id, unsigned scope) {
    if (id == 230) return number(device);
    if (id == 164) return number(device) && scope == 5 ? 13281 : 26562; /* one link came up at half its speed */
    return number(device) ? 7 : 0;
}
struct field { unsigned id, scope; long long time, took; int kind, outcome; union { unsigned ui; unsigned long long ull; } value; };
int nvmlDeviceGetFieldValues(Device device, int count, struct field *fields) {
    for (int at = 0; at < count; at++) {
        fields[at].outcome = fields[at].id == 59 ? NOT_SUPPORTED : SUCCESS;
        fields[at].value.ull = value(device, fields[at].id, fields[at].scope);
    }
    return SUCCESS;
}
struct fabric { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };
int nvmlDeviceGetGpuFabricInfo(Device device, struct fabric *fabric) {
    fabric->state = number(device) ? 2 : 3;
    return SUCCESS;
}
int nvmlDeviceGetComputeMode(Device device, int *mode) { *mode = number(device) ? 2 : 0; return SUCCESS; }
int nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *then) { *now = *then = 0; return SUCCESS; }
struct process { unsigned pid; unsigned long long memory; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct process *processes) {
    if (!processes) { *count = 1; return 7; }
    processes[0] = (struct process){.pid = 1 + 4242 * number(device), .memory = 1ull << 30};
    *count = 1;
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, int *level) { *level = 50; return SUCCESS; }
int nvmlDeviceGetP2PStatus(Device one, Device other, int index, int *status) { *status = index == 0 ? 4 : 0; return 0; }
