/* Stands in for libnvidia-ml.so.1: eight cards like H100s under load, each with two processes.

   tpmon's NVML child runs unchanged over the real pynvml and this library, so that a bench without a
   card measures all that tpmon does itself; what a driver takes for its answers is not in it.
   TPMON_BENCH_PIDS names the processes that the cards list, one a card, separated by commas.
   Numbers move from second to second as those of a training do. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CARDS = 8, RING = 72, ROWS = 100, SAMPLE_US = 143000 };
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };

typedef struct { int index; } Card;
typedef union { double d; int32_t si; uint32_t ui; uint64_t ull; } Value;
typedef struct { uint64_t stamp; Value value; } Sample;
typedef struct { uint32_t field, scope; int64_t stamp, latency; uint32_t type, code; Value value; } Field;
typedef struct { uint32_t pid; uint64_t used; uint32_t instance, compute; } Process;
typedef struct { uint64_t stamp; uint32_t pid, sm, memory, enc, dec, jpg, ofa; } Busy;
typedef struct { uint32_t version, count; uint64_t since; Busy *rows; } BusyList;
typedef struct { uint32_t version, pad; uint64_t total, reserved, free, used; } Memory;
typedef struct { uint32_t id, code; double value; char *names[3]; } Metric;
typedef struct { uint32_t version, count; void *old, *new; Metric metrics[]; } Metrics;

static Card cards[CARDS];
static uint32_t listed[CARDS];

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Returns a number below span that changes with the moment, the card and what it is for. */
static uint32_t noise(uint64_t moment, int card, uint32_t salt, uint32_t span) {
    uint64_t mixed = (moment + 1) * 2654435761u + (uint64_t)card * 40503 + (uint64_t)salt * 9973;
    mixed ^= mixed >> 15;
    return (uint32_t)(mixed * 2246822519u >> 16) % span;
}

static uint32_t second_noise(Card *card, uint32_t salt, uint32_t span) {
    return noise(now_us() / 1000000, card->index, salt, span);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *pids = getenv("TPMON_BENCH_PIDS");
    for (int i = 0; i < CARDS; i++) {
        cards[i].index = i;
        listed[i] = pids ? (uint32_t)strtoul(pids, (char **)&pids, 10) : 0;
        if (pids && *pids == ',') pids++;
    }
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(uint32_t *count) { *count = CARDS; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(uint32_t index, Card **card) { *card = &cards[index]; return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "simulated"; }

int nvmlDeviceGetUUID(Card *card, char *text, unsigned size) {
    snprintf(text, size, "GPU-5ba2f1c4-30d8-11ef-9c3e-00000000000%d", card->index);
    return SUCCESS;
}

int nvmlDeviceGetName(Card *card, char *text, unsigned size) {
    (void)card;
    snprintf(text, size, "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}

#define NUMBER(name, type, expression) \
    int name(Card *card, type *answer) { (void)card; *answer = (expression); return SUCCESS; }
#define NUMBER_OF(name, type, expression) \
    int name(Card *card, uint32_t kind, type *answer) { (void)card; (void)kind; *answer = (expression); return SUCCESS; }

NUMBER(nvmlDeviceGetMinorNumber, uint32_t, card->index)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, uint32_t, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, uint32_t, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, uint32_t, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, uint32_t, 16)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, uint32_t, 700000)
NUMBER(nvmlDeviceGetPowerUsage, uint32_t, 560000 + second_noise(card, 1, 60000))
NUMBER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, now_us() / 1000 * 560)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, second_noise(card, 2, 8) ? 0 : 4)
NUMBER_OF(nvmlDeviceGetClockInfo, uint32_t, kind == 1 ? 1980 - 15 * second_noise(card, 3, 4) : 2619)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, uint32_t, kind == 1 ? 1980 : 2619)
NUMBER_OF(nvmlDeviceGetTemperature, uint32_t, 58 + second_noise(card, 4, 4))
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, uint32_t, 87)

int nvmlDeviceGetMarginTemperature(Card *card, uint32_t *margin) { margin[1] = 25 + card->index % 2; return SUCCESS; }
int nvmlDeviceGetMigMode(Card *card, uint32_t *now, uint32_t *next) { (void)card; *now = *next = 0; return SUCCESS; }

int nvmlDeviceGetTotalEccErrors(Card *card, uint32_t kind, uint32_t counter, uint64_t *count) {
    (void)card; (void)kind; (void)counter;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Card *card, uint32_t *corrected, uint32_t *lost, uint32_t *pending, uint32_t *failed) {
    (void)card;
    *corrected = *lost = *pending = *failed = 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Card *card, Memory *memory) {
    memory->total = 85520809984;
    memory->reserved = 540 << 20;
    memory->used = 71000000000 + second_noise(card, 5, 4) * (32 << 20);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetSamples(Card *card, uint32_t kind, uint64_t since, uint32_t *type, uint32_t *count, Sample *samples) {
    *type = 1;
    if (!samples) { *count = RING; return SUCCESS; }
    uint64_t newest = now_us() / SAMPLE_US;
    uint32_t filled = 0;
    for (uint64_t slot = newest - RING + 1; slot <= newest; slot++) {
        if (slot * SAMPLE_US <= since) continue;
        samples[filled].stamp = slot * SAMPLE_US;
        samples[filled++].value.ui = kind == 1 ? 92 + noise(slot, card->index, 6, 9) : 30 + noise(slot, card->index, 7, 20);
    }
    *count = filled;
    return filled ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetFieldValues(Card *card, int count, Field *fields) {
    uint64_t ms = now_us() / 1000;
    for (int i = 0; i < count; i++) {
        Field *field = &fields[i];
        field->type = 3;
        field->code = SUCCESS;
        switch (field->field) {
        case 83: field->value.ull = ms * 560 + card->index * 7; break;
        case 74: field->value.ull = ms * 40000; break;
        case 197: field->value.ull = ms * 2100000 + card->index; break;
        case 198: field->value.ull = ms * 3400000 + card->index; break;
        case 138: case 139: field->value.ull = ms * 9100; break;
        case 82: field->value.ull = 66 + second_noise(card, 8, 3); break;
        case 91: field->value.ull = 18; break;
        case 75: case 269: case 270: case 271: case 76: case 77: case 79: case 230: field->value.ull = 0; break;
        default: field->code = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, uint32_t *count, Process *processes) {
    if (!processes) { *count = 2; return TOO_SMALL; }
    processes[0] = (Process){listed[card->index], 70000000000, -1, -1};
    processes[1] = (Process){1, 520 << 20, -1, -1};
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetRunningProcessDetailList(void) { return NOT_SUPPORTED; }

int nvmlDeviceGetProcessesUtilizationInfo(Card *card, BusyList *list) {
    if (!list->rows) { list->count = ROWS; return TOO_SMALL; }
    uint64_t stamp = now_us() / SAMPLE_US * SAMPLE_US;
    if (stamp <= list->since) return NOT_FOUND;
    list->rows[0] = (Busy){.stamp = stamp, .pid = listed[card->index], .sm = 92 + second_noise(card, 9, 8)};
    list->count = 1;
    return SUCCESS;
}

int nvmlGpmQueryDeviceSupport(Card *card, uint32_t *support) { (void)card; support[1] = 1; return SUCCESS; }
int nvmlGpmSampleAlloc(void **sample) { *sample = malloc(64); return *sample ? SUCCESS : NOT_SUPPORTED; }
int nvmlGpmSampleFree(void *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(Card *card, void *sample) { memcpy(sample, &card->index, sizeof card->index); return SUCCESS; }

int nvmlGpmMetricsGet(Metrics *request) {
    int card;
    memcpy(&card, request->new, sizeof card);
    uint64_t second = now_us() / 1000000;
    for (uint32_t i = 0; i < request->count; i++) {
        Metric *metric = &request->metrics[i];
        double share = noise(second, card, metric->id, 10000) / 10000.0;
        metric->code = SUCCESS;
        metric->value = metric->id >= 20 ? 3000 * (1 + share) : 20 + 8 * share + (metric->id == 2 ? 65 : 0);
    }
    return SUCCESS;
}

int nvmlEventSetCreate(void **events) { *events = cards; return SUCCESS; }
int nvmlEventSetFree(void *events) { (void)events; return SUCCESS; }
int nvmlDeviceRegisterEvents(Card *card, uint64_t kinds, void *events) { (void)card; (void)kinds; (void)events; return SUCCESS; }

int nvmlEventSetWait_v2(void *events, void *data, uint32_t timeout_ms) {
    (void)events; (void)data;
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}
