/* Stands in for libnvidia-ml.so.1: cards like H100s under load, each with two processes.

   tpmon's NVML child runs unchanged over the real pynvml and this library, so that a bench without a
   card measures all that tpmon does itself; what a driver takes for its answers is not in it.
   Numbers move from second to second as those of a training do. Build and use it as tests/cards.py does:
   cc -shared -fPIC -O1 -pthread -o DIR/libnvidia-ml.so.1 cards.c, then LD_LIBRARY_PATH=DIR.

   TPMON_BENCH_PIDS    the processes that the cards list, one a card, separated by commas
   TPMON_CARDS         how many cards there are, 8 unless told, at most 64
   TPMON_CARDS_FAULTS  a file of faults, one a line; it may be written anew at any time

   A fault is: CARD CALL[/PART] KIND [VALUE] [after SECONDS] [until SECONDS] [every SECONDS]
   CARD is an index, * for each card, or "driver" for calls that ask no card. CALL is a name of NVML, or *.
   PART picks one answer of a call that has several: the field id, the GPM metric, the kind of clock, sample
   or policy, and in the order of the structure 1, 2 ... of memory (total, used), utilisation (gpu, memory)
   and of the process list (PID, bytes). Times count from nvmlInit; "every 3" strikes in each third second.
     code N     answer with this return code        value X   give this number
     rate X     a counter moves by X a second       hold MS   a counter moves each MS only
     stamp X    stamp a field with this time, us    text WORD give this text
     stall MS   answer late, with what is true then block     never answer
     xid N      tell this Xid once (CALL: nvmlEventSetWait_v2)
   "2 * block after 5": card 2 falls silent for ever. "1 * code 15 after 5": it falls off the bus. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { USUAL_CARDS = 8, CARDS = 64, RING = 72, ROWS = 100, SAMPLE_US = 143000, FAULTS = 512 };
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };
enum { DRIVER = -1, EACH = -2, WHOLE = -1 };
typedef enum { CODE, VALUE, RATE, HOLD, STAMP, TEXT, STALL, BLOCK, XID, KINDS } Kind;
static const char *const KIND_NAMES[] = {"code", "value", "rate", "hold", "stamp", "text", "stall", "block", "xid"};

typedef struct { int index; } Card;
typedef union { double d; int32_t si; uint32_t ui; uint64_t ull; } Value;
typedef struct { uint64_t stamp; Value value; } Sample;
typedef struct { uint32_t field, scope; int64_t stamp, latency; uint32_t type, code; Value value; } Field;
typedef struct { uint32_t pid; uint64_t used; uint32_t instance, compute; } Process;
typedef struct { uint64_t stamp; uint32_t pid, sm, memory, enc, dec, jpg, ofa; } Busy;
typedef struct { uint32_t version, count; uint64_t since; Busy *rows; } BusyList;
typedef struct { uint32_t pid; uint64_t stamp; uint32_t sm, memory, enc, dec; } OldBusy;
typedef struct { uint32_t version, pad; uint64_t total, reserved, free, used; } Memory;
typedef struct { uint64_t total, free, used; } OldMemory;
typedef struct { uint32_t id, code; double value; char *names[3]; } Metric;
typedef struct { uint32_t version, count; void *old, *new; Metric metrics[]; } Metrics;
typedef struct { Card *card; uint64_t type, data; uint32_t instance, compute; } Event;
typedef struct {
    int card;
    char call[56], text[96];
    long part;
    Kind kind;
    double value, after, until, every;
    uint64_t whole;
} Fault;

static Card cards[CARDS];
static uint32_t listed[CARDS], card_count;
static uint64_t told_xid[CARDS], began_us;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *faults_path;
static Fault faults[FAULTS];
static int fault_count;
static struct timespec faults_read;

static uint64_t clock_us(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static uint64_t now_us(void) { return clock_us(CLOCK_MONOTONIC); }

static int parse(char *line, Fault *fault) {
    char *rest = NULL, *word = strtok_r(line, " \t\n", &rest);
    if (!word || *word == '#') return 0;
    *fault = (Fault){.part = WHOLE, .kind = KINDS};
    fault->card = *word == '*' ? EACH : strcmp(word, "driver") ? atoi(word) : DRIVER;
    if (!(word = strtok_r(NULL, " \t\n", &rest))) return 0;
    char *part = strchr(word, '/');
    if (part) { *part++ = 0; fault->part = atol(part); }
    snprintf(fault->call, sizeof fault->call, "%s", word);
    while ((word = strtok_r(NULL, " \t\n", &rest))) {
        if (fault->kind == KINDS) {
            for (fault->kind = 0; fault->kind < KINDS && strcmp(word, KIND_NAMES[fault->kind]); fault->kind++) {}
            if (fault->kind == KINDS) return 0;
            if (fault->kind == BLOCK || !(word = strtok_r(NULL, " \t\n", &rest))) continue;
            snprintf(fault->text, sizeof fault->text, "%s", word);
            fault->value = strtod(word, NULL);
            int is_real = strncmp(word, "0x", 2) && strpbrk(word, ".en");
            fault->whole = is_real ? (uint64_t)fault->value : strtoull(word, NULL, 0);
            continue;
        }
        char *number = strtok_r(NULL, " \t\n", &rest);
        double seconds = number ? strtod(number, NULL) : 0;
        if (!strcmp(word, "after")) fault->after = seconds;
        else if (!strcmp(word, "until")) fault->until = seconds;
        else if (!strcmp(word, "every")) fault->every = seconds;
    }
    return fault->kind != KINDS;
}

static void read_faults(void) {
    struct stat status;
    if (stat(faults_path, &status)) { fault_count = 0; return; }
    if (!memcmp(&status.st_mtim, &faults_read, sizeof faults_read)) return;
    faults_read = status.st_mtim;
    FILE *file = fopen(faults_path, "r");
    if (!file) return;
    char line[256];
    for (fault_count = 0; fault_count < FAULTS && fgets(line, sizeof line, file);)
        fault_count += parse(line, &faults[fault_count]);
    fclose(file);
}

static int strikes(const Fault *fault) {
    double second = (now_us() - began_us) / 1e6;
    if (second < fault->after || (fault->until && second >= fault->until)) return 0;
    return !fault->every || (uint64_t)second % (uint64_t)fault->every == 0;
}

/* Finds a fault of this very part of a call that strikes now. */
static int find(int card, const char *call, long part, Kind kind, Fault *found) {
    if (!faults_path) return 0;
    pthread_mutex_lock(&lock);
    read_faults();
    int there = 0;
    for (int i = 0; i < fault_count && !there; i++) {
        const Fault *fault = &faults[i];
        if (fault->kind != kind || fault->part != part || !strikes(fault)) continue;
        if (fault->card != card && (fault->card != EACH || card == DRIVER)) continue;
        there = !strcmp(fault->call, "*") || !strcmp(fault->call, call);
        if (there) *found = *fault;
    }
    pthread_mutex_unlock(&lock);
    return there;
}

/* Stalls or blocks a call as its faults ask, and returns the code that it is to answer with. */
static int meet(int card, const char *call, long part) {
    Fault fault;
    if (find(card, call, part, BLOCK, &fault)) for (;;) pause();
    if (find(card, call, part, STALL, &fault)) usleep(fault.whole * 1000);
    return find(card, call, part, CODE, &fault) ? (int)fault.whole : SUCCESS;
}

static int find_any(int card, const char *call, long part, Kind kind, Fault *found) {
    return find(card, call, part, kind, found) || find(card, call, WHOLE, kind, found);
}

static uint64_t bend(Card *card, const char *call, long part, uint64_t normal) {
    Fault fault;
    return find_any(card->index, call, part, VALUE, &fault) ? fault.whole : normal;
}

/* Returns a counter that moves by so much a millisecond. */
static uint64_t count(Card *card, const char *call, long part, uint64_t per_ms) {
    Fault fault;
    uint64_t ms = now_us() / 1000;
    if (find_any(card->index, call, part, HOLD, &fault)) ms = ms / fault.whole * fault.whole;
    uint64_t counted = ms * per_ms;
    if (find_any(card->index, call, part, RATE, &fault)) counted = (uint64_t)((ms - began_us / 1000) * (fault.value / 1000));
    return bend(card, call, part, counted + card->index * 7);
}

static int say(Card *card, const char *call, char *text, unsigned size, const char *normal) {
    Fault fault;
    int index = card ? card->index : DRIVER;
    snprintf(text, size, "%s", find(index, call, WHOLE, TEXT, &fault) ? fault.text : normal);
    return SUCCESS;
}

#define MEET(index) { int failed = meet(index, __func__, WHOLE); if (failed) return failed; }
#define MEET_PART(index, part) { int failed = meet(index, __func__, part); if (failed) return failed; }

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
    const char *pids = getenv("TPMON_BENCH_PIDS"), *count = getenv("TPMON_CARDS");
    card_count = count ? (uint32_t)atoi(count) % (CARDS + 1) : USUAL_CARDS;
    faults_path = getenv("TPMON_CARDS_FAULTS");
    began_us = now_us();
    for (int i = 0; i < CARDS; i++) {
        cards[i].index = i;
        listed[i] = pids ? (uint32_t)strtoul(pids, (char **)&pids, 10) : 0;
        if (pids && *pids == ',') pids++;
    }
    MEET(DRIVER)
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { MEET(DRIVER) return say(NULL, __func__, text, size, "580.65.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { MEET(DRIVER) *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(uint32_t *count) { MEET(DRIVER) *count = card_count; return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "simulated"; }

int nvmlDeviceGetHandleByIndex_v2(uint32_t index, Card **card) {
    MEET((int)index)
    *card = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Card *card, char *text, unsigned size) {
    MEET(card->index)
    char uuid[48];
    snprintf(uuid, sizeof uuid, "GPU-5ba2f1c4-30d8-11ef-9c3e-%012d", card->index);
    return say(card, __func__, text, size, uuid);
}

int nvmlDeviceGetName(Card *card, char *text, unsigned size) {
    MEET(card->index)
    return say(card, __func__, text, size, "NVIDIA H100 80GB HBM3");
}

#define NUMBER(name, type, expression) \
    int name(Card *card, type *answer) { MEET(card->index) *answer = (type)bend(card, __func__, WHOLE, (expression)); return SUCCESS; }
#define NUMBER_OF(name, type, expression) \
    int name(Card *card, uint32_t kind, type *answer) { \
        MEET(card->index) MEET_PART(card->index, kind) \
        *answer = (type)bend(card, __func__, kind, (expression)); \
        return SUCCESS; \
    }

NUMBER(nvmlDeviceGetMinorNumber, uint32_t, card->index)
NUMBER(nvmlDeviceGetBusType, uint32_t, 2)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, uint32_t, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, uint32_t, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, uint32_t, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, uint32_t, 16)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, uint32_t, 700000)
NUMBER(nvmlDeviceGetPowerUsage, uint32_t, 560000 + second_noise(card, 1, 60000))
NUMBER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, count(card, __func__, WHOLE, 560))
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, second_noise(card, 2, 8) ? 0 : 4)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, second_noise(card, 2, 8) ? 0 : 4)
NUMBER_OF(nvmlDeviceGetClockInfo, uint32_t, kind == 1 ? 1980 - 15 * second_noise(card, 3, 4) : 2619)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, uint32_t, kind == 1 ? 1980 : 2619)
NUMBER_OF(nvmlDeviceGetTemperature, uint32_t, 58 + second_noise(card, 4, 4))
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, uint32_t, 87)

int nvmlDeviceGetTemperatureV(Card *card, uint32_t *answer) {
    MEET(card->index)
    answer[2] = (uint32_t)bend(card, __func__, WHOLE, 58 + second_noise(card, 4, 4));
    return SUCCESS;
}

int nvmlDeviceGetMarginTemperature(Card *card, uint32_t *margin) {
    MEET(card->index)
    margin[1] = (uint32_t)bend(card, __func__, WHOLE, 25 + card->index % 2);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Card *card, uint32_t *now, uint32_t *next) {
    MEET(card->index)
    *now = *next = (uint32_t)bend(card, __func__, WHOLE, 0);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Card *card, uint32_t kind, uint32_t counter, uint64_t *count) {
    MEET(card->index)
    (void)kind; (void)counter;
    *count = bend(card, __func__, WHOLE, 0);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Card *card, uint32_t *corrected, uint32_t *lost, uint32_t *pending, uint32_t *failed) {
    MEET(card->index)
    *corrected = *lost = *pending = *failed = (uint32_t)bend(card, __func__, WHOLE, 0);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Card *card, Memory *memory) {
    MEET(card->index)
    memory->total = bend(card, __func__, 1, 85520809984);
    memory->reserved = 540 << 20;
    memory->used = bend(card, __func__, 2, 71000000000 + second_noise(card, 5, 4) * (32 << 20));
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Card *card, OldMemory *memory) {
    MEET(card->index)
    memory->total = bend(card, __func__, 1, 85520809984);
    memory->used = bend(card, __func__, 2, 71540000000 + second_noise(card, 5, 4) * (32 << 20));
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Card *card, uint32_t *rates) {
    MEET(card->index)
    rates[0] = (uint32_t)bend(card, __func__, 1, 92 + second_noise(card, 6, 9));
    rates[1] = (uint32_t)bend(card, __func__, 2, 30 + second_noise(card, 7, 20));
    return SUCCESS;
}

int nvmlDeviceGetSamples(Card *card, uint32_t kind, uint64_t since, uint32_t *type, uint32_t *count, Sample *samples) {
    MEET(card->index)
    MEET_PART(card->index, kind)
    *type = 1;
    if (!samples) { *count = RING; return SUCCESS; }
    uint64_t newest = now_us() / SAMPLE_US;
    uint32_t filled = 0;
    for (uint64_t slot = newest - RING + 1; slot <= newest; slot++) {
        if (slot * SAMPLE_US <= since) continue;
        uint32_t usual = kind == 1 ? 92 + noise(slot, card->index, 6, 9) : 30 + noise(slot, card->index, 7, 20);
        samples[filled].stamp = slot * SAMPLE_US;
        samples[filled++].value.ui = (uint32_t)bend(card, __func__, kind, usual);
    }
    *count = filled;
    return filled ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetViolationStatus(Card *card, uint32_t policy, uint64_t *status) {
    MEET(card->index)
    MEET_PART(card->index, policy)
    status[0] = now_us();
    status[1] = count(card, __func__, policy, policy ? 0 : 40000);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Card *card, int wanted, Field *fields) {
    MEET(card->index)
    for (int i = 0; i < wanted; i++) {
        Field *field = &fields[i];
        Fault fault;
        uint64_t per_ms = 0, fixed = 0;
        field->type = 3;
        field->code = meet(card->index, __func__, field->field);
        switch (field->field) {
        case 83: per_ms = 560; break;
        case 74: per_ms = 40000; break;
        case 197: per_ms = 2100000; break;
        case 198: per_ms = 3400000; break;
        case 138: case 139: per_ms = 9100; break;
        case 82: fixed = 66 + second_noise(card, 8, 3); break;
        case 91: fixed = 18; break;
        case 75: case 269: case 270: case 271: case 76: case 77: case 79: case 230: break;
        default: field->code = NOT_SUPPORTED;
        }
        field->value.ull = per_ms ? count(card, __func__, field->field, per_ms)
                                  : bend(card, __func__, field->field, fixed);
        field->stamp = (int64_t)clock_us(CLOCK_REALTIME);
        if (find_any(card->index, __func__, field->field, STAMP, &fault)) field->stamp = (int64_t)fault.whole;
    }
    return SUCCESS;
}

static int list_processes(Card *card, const char *call, uint32_t *count, Process *processes) {
    if (!processes) { *count = 2; return TOO_SMALL; }
    processes[0] = (Process){listed[card->index], bend(card, call, 2, 70000000000), -1, -1};
    processes[0].pid = (uint32_t)bend(card, call, 1, processes[0].pid);
    processes[1] = (Process){1, 520 << 20, -1, -1};
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, uint32_t *count, Process *processes) {
    MEET(card->index)
    return list_processes(card, __func__, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Card *card, uint32_t *count, Process *processes) {
    MEET(card->index)
    return list_processes(card, __func__, count, processes);
}

int nvmlDeviceGetRunningProcessDetailList(void) { return NOT_SUPPORTED; }

int nvmlDeviceGetProcessesUtilizationInfo(Card *card, BusyList *list) {
    MEET(card->index)
    if (!list->rows) { list->count = ROWS; return TOO_SMALL; }
    uint64_t stamp = now_us() / SAMPLE_US * SAMPLE_US;
    if (stamp <= list->since) return NOT_FOUND;
    uint32_t sm = (uint32_t)bend(card, __func__, WHOLE, 92 + second_noise(card, 9, 8));
    list->rows[0] = (Busy){.stamp = stamp, .pid = listed[card->index], .sm = sm};
    list->count = 1;
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(Card *card, OldBusy *rows, uint32_t *count, uint64_t since) {
    MEET(card->index)
    if (!rows) { *count = ROWS; return TOO_SMALL; }
    uint64_t stamp = now_us() / SAMPLE_US * SAMPLE_US;
    if (stamp <= since) return NOT_FOUND;
    uint32_t sm = (uint32_t)bend(card, __func__, WHOLE, 92 + second_noise(card, 9, 8));
    rows[0] = (OldBusy){.stamp = stamp, .pid = listed[card->index], .sm = sm};
    *count = 1;
    return SUCCESS;
}

int nvmlGpmQueryDeviceSupport(Card *card, uint32_t *support) {
    MEET(card->index)
    support[1] = (uint32_t)bend(card, __func__, WHOLE, 1);
    return SUCCESS;
}

int nvmlGpmSampleAlloc(void **sample) { *sample = malloc(64); return *sample ? SUCCESS : NOT_SUPPORTED; }
int nvmlGpmSampleFree(void *sample) { free(sample); return SUCCESS; }

int nvmlGpmSampleGet(Card *card, void *sample) {
    MEET(card->index)
    memcpy(sample, &card->index, sizeof card->index);
    return SUCCESS;
}

int nvmlGpmMetricsGet(Metrics *request) {
    int card;
    memcpy(&card, request->new, sizeof card);
    MEET(card)
    uint64_t second = now_us() / 1000000;
    for (uint32_t i = 0; i < request->count; i++) {
        Metric *metric = &request->metrics[i];
        Fault fault;
        double share = noise(second, card, metric->id, 10000) / 10000.0;
        metric->code = meet(card, __func__, metric->id);
        metric->value = metric->id >= 20 ? 3000 * (1 + share) : 20 + 8 * share + (metric->id == 2 ? 65 : 0);
        if (find_any(card, __func__, metric->id, VALUE, &fault)) metric->value = fault.value;
    }
    return SUCCESS;
}

int nvmlEventSetCreate(void **events) { MEET(DRIVER) *events = cards; return SUCCESS; }
int nvmlEventSetFree(void *events) { (void)events; return SUCCESS; }

int nvmlDeviceRegisterEvents(Card *card, uint64_t kinds, void *events) {
    MEET(card->index)
    (void)kinds; (void)events;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *events, Event *event, uint32_t timeout_ms) {
    (void)events;
    MEET(DRIVER)
    Fault fault;
    for (uint32_t i = 0; i < card_count; i++) {
        if (!find((int)i, __func__, WHOLE, XID, &fault) || told_xid[i] == fault.whole) continue;
        told_xid[i] = fault.whole;
        *event = (Event){&cards[i], 8, fault.whole, -1, -1};
        return SUCCESS;
    }
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}
