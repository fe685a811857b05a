"""Chinese wordings of signals: of programs, and of the C library's error messages."""

from __future__ import annotations

from holdfast.diagnose.logs.signals.row import rows

#: Not after ``TimeoutError: ``: an exception has its own rule, which names its rank and frame.
_LOGGED = r"(?:^|[^ ]|[^:] |[^r]: )"

ROWS = rows(
    ("watchdog-timeout", _LOGGED + "(?:NCCL ?(?:操作|通信|集合通信)|集合(?:通信|操作))超时"),
    ("rendezvous-timeout", "进程组初始化(?:失败|超时)|初始化(?:分布式)?进程组(?:失败|超时)"),
    ("cuda-out-of-memory", "显存(?:不足|溢出)|CUDA ?内存不足"),
    ("port-in-use", "地址已(?:在|被)使用|端口(?:已)?被占用"),
    ("connect-refused", "拒绝连接|连接被拒绝?"),
    ("connect-timed-out", "连接超时"),
    ("no-route", "没有到主机的路由"),
    ("no-network", "网络不可达"),
    ("name-resolution", "未知的名称或服务|域名解析(?:暂时)?失败"),
    ("peer-closed", "对端重置连接|连接被对(?:方|端)重(?:置|设)|断开的管道"),
    ("no-space", "设备上没有空间|磁盘空间不足|超出磁盘限额"),
    ("host-memory", "无法分配内存"),
    ("fd-limit", "打开的文件过多"),
    ("process-limit", "资源暂时不可用"),
    ("segfault", "段错误"),
    ("bus-error", "总线错误"),
    ("killed", r"^已杀死|: line \d+: +\d+ 已杀死"),
    ("finished", "训练(?:已)?(?:完成|结束)"),
)
