"""Remedies for what one thread waits for: a peer, a lock on a file, a queue, another process, a thread."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="limit-the-request",
        title="see whether {peer} still answers, and give the request a time limit",
        applies="A process waits for data on a socket and none comes: a server that hangs, a firewall that "
        "dropped the connection without a word.",
        not_when="The other end is a rank of this job: then look at that rank.",
        needs=(Need.SOCKET_WAIT,),
        paste="ss -tnpo | grep pid={pid},  # and in the program: timeout=60 in the request, or "
        "socket.setdefaulttimeout(60)",
        language=Language.SHELL,
        ceiling="the run goes on after a restart; the next time it raises",
        risk=Risk.NONE,
        proof="A request that gets no answer raises, and is tried again.",
    ),
    Remedy(
        id="free-file-lock",
        title="look at process {other}, which holds the lock on the file",
        applies="A process waits in flock or fcntl for a lock on a file that another process, of this job or "
        "not, keeps: a cache, a download, a compiled kernel.",
        not_when="The holder works on that file right now: wait. On NFS it may be on another host.",
        needs=(Need.FILE_LOCK_WAIT,),
        paste="ps -o pid,ppid,stat,etime,args -p {other}; cat /proc/locks",
        language=Language.SHELL,
        ceiling="the run goes on when that process gives it back or ends",
        risk=Risk.NONE,
        proof="Steps go on.",
    ),
    Remedy(
        id="look-for-producer",
        title="look for what feeds the queue: nothing is put into it",
        applies="A thread waits in get() of a queue, and the thread or process that should put something in "
        "has ended, has raised, or waits itself.",
        not_when="It waits for work on purpose, as the threads of a pool do.",
        needs=(Need.QUEUE_WAIT,),
        paste="item = work.get(timeout=60)  # raises queue.Empty; and let the producer put its exception in",
        ceiling="the run goes on after a restart; the next time it raises",
        risk=Risk.NONE,
        proof="It raises with a stack instead of standing still.",
    ),
    Remedy(
        id="end-left-thread",
        title="end the thread that is left: make it a daemon, join it, or close its pool",
        applies="The program has come to its end, and Python waits for a thread of it that is no daemon.",
        not_when="The thread still writes something that is needed, such as the last checkpoint.",
        needs=(Need.THREAD_LEFT,),
        paste="threading.Thread(target=work, daemon=True)  # or pool.shutdown(cancel_futures=True)",
        ceiling="the job ends, and gives its cards back",
        risk=Risk.NONE,
        proof="The process ends after its last line.",
    ),
    Remedy(
        id="look-at-other-process",
        title="look at process {other}, which it waits for",
        applies="A process waits for another one: for its end, or at a pipe that the other has open.",
        not_when="That process is at work: then it is slow, not stuck.",
        needs=(Need.PROCESS_WAIT,),
        paste="ps -o pid,ppid,stat,etime,wchan:20,args -p {other}; readlink /proc/{other}/fd/*",
        language=Language.SHELL,
        ceiling="the run goes on when that process does; a timeout= in join, run or get makes it an error",
        risk=Risk.NONE,
        proof="Steps go on.",
    ),
    Remedy(
        id="find-other-end",
        title="find what should be at the other end of the pipe: no process has it open",
        applies="A process waits to open, read or write a FIFO or pipe of which nobody has the other end.",
        not_when="The other end is of another container or another user: it cannot be seen from here.",
        needs=(Need.NOBODY_AT_PIPE,),
        paste="readlink /proc/{pid}/fd/*; pgrep -af NAME_OF_WHAT_FEEDS_IT",
        language=Language.SHELL,
        ceiling="the run goes on when the other end is opened",
        risk=Risk.NONE,
        proof="Steps go on.",
    ),
    Remedy(
        id="thaw-group",
        title="thaw the control group that holds process {pid}",
        applies="The freezer of the process's control group, or of one above it, is on: docker pause, "
        "systemctl freeze, a checkpoint of the container, a scheduler that has suspended the job.",
        not_when="A scheduler or a checkpoint of the container has frozen it on purpose and thaws it itself. "
        "SIGCONT does nothing here.",
        needs=(Need.FROZEN,),
        paste="{thaw}",
        language=Language.SHELL,
        ceiling="the run goes on at once; peers may have given it up meanwhile",
        risk=Risk.NONE,
        proof="cgroup.events says frozen 0, or freezer.state THAWED, and steps go on.",
    ),
    Remedy(
        id="end-debugger",
        title="let {tracer} give process {pid} back: detach it, or end it",
        applies="A debugger, strace or a profiler holds the process by ptrace (state t).",
        not_when="Somebody works in that debugger right now: ask first.",
        needs=(Need.TRACED,),
        paste="ps -o pid,ppid,user,tty,stat,etime,args -p {tracer_pid}  # in gdb: detach, quit; one that "
        "started the process itself ends it when it is killed",
        language=Language.SHELL,
        ceiling="the run goes on at once",
        risk=Risk.NONE,
        proof="Its state is R or S again and steps go on.",
    ),
    Remedy(
        id="look-at-missing-rank",
        title="look at rank {rank}, which the others wait for: its variables, before it is restarted",
        applies="The ranks wait for one that is not in their collective.",
        not_when="All ranks here wait: then it is elsewhere.",
        needs=(),
        paste="tpmon dump {pid} --rank {rank} --locals",
        language=Language.SHELL,
        ceiling="none; it says what to repair",
        risk=Risk.NONE,
        proof="The variables show which batch, file or branch it is at.",
        never_with=(Need.RANK_GONE,),
    ),
)
