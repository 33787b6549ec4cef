"""Column names and units in other languages, in the English words that this package knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

# In Chinese, Japanese, Korean and Russian; "_" is a space. "精度" means a precision or an accuracy:
# the cells tell which.
OTHER_SCRIPTS = {
    "execution time": "время_выполнения время_работы время_расчёта время_расчета час_виконання "
    "час_роботи "
    "実行時間 処理時間 실행_시간 실행시간 运行时间 执行时间",
    "matrix size": "размер_матрицы",
    "number of": "количество кількість число кол-во к-сть",
    "number": "番号 编号",
    "gpus per node": "每台机器的gpu数 每台机器gpu数 每节点gpu数 单机gpu数 "
    "每机gpu数 每节点卡数 单机卡数 每机卡数",
    "gpu count": "显卡数 卡数",
    "count": "数量 数目 个数 개수",
    "gpus": "gpu数 gpu數",
    "npus": "npu数",
    "nodes": "节点数 机器数 ノード数 노드_수 노드_개수 노드수 узлов узлы",
    "processes": "进程数 プロセス数 프로세스_수 프로세스_개수 процессов процессы процесів процеси",
    "threads": "线程数 スレッド数 스레드_수 스레드_개수 스레드 потоков потоки потоків нитей нити",
    "cores": "核心数 核数 コア数 코어_수 ядер ядра",
    "steps": "步数",
    "epochs": "轮数",
    "samples": "样本数",
    "model parameters": "模型参数量 参数量",
    "model size": "模型大小 模型规模 模型規模",
    "model": "模型名称 模型类型 模型 モデル 모델",
    "gpu model": "显卡型号 npu芯片型号 芯片型号 gpu型号 gpu名称 显卡",
    "gpu memory utilization": "显存占用率 显存使用率 显存利用率",
    "gpu memory": "gpuメモリ gpu_메모리 显存占用量 显存占用 显存使用 显存消耗 显存用量 显存",
    "host memory": "内存占用 内存",
    "throughput": "吞吐量 吞吐率 吞吐 スループット 처리량",
    "speedup": "加速比 加速倍数 吞吐倍率 スピードアップ 速度向上率 高速化率 속도_향상 속도향상 "
    "가속비 ускорение прискорення",
    "scaling efficiency": "扩展效率 并行效率 加速效率 线性度 並列化効率 並列効率 병렬_효율",
    "efficiency": "效率 効率 효율 эффективность ефективність",
    "utilization": "利用率",
    "performance": "性能",
    "step time": "每步耗时 每步时间 单步耗时 单步时间 每步总耗时 迭代耗时 迭代时间",
    "training time": "训练时长 学習時間 학습_시간 훈련_시간",
    "training speed": "训练速度",
    "epoch time": "epoch당_시간 에폭당_시간 에포크당_시간",
    "time h": "время,_час",
    "time": "时间开销 耗时 用时 时间 時間 시간 время час",
    "latency": "延迟 时延",
    "effective batch size": "有効バッチサイズ",
    "batch size": "批处理大小 批次大小 批量大小 批大小 バッチサイズ 배치_크기 배치_사이즈",
    "micro batch size": "微批次大小 微批大小",
    "gradient accumulation": "梯度累积步数 梯度累积 梯度累加",
    "sequence length": "序列长度 上下文长度",
    "data parallel": "数据并行度 数据并行",
    "tensor parallel": "张量并行度 张量并行",
    "pipeline parallel": "流水线并行度 流水线并行 流水并行",
    "expert parallel": "专家并行度 专家并行",
    "context parallel": "上下文并行度 上下文并行",
    "strategy": "并行策略 并行方式 并行配置 并行模式 策略 方法 方案 配置 模式 手法 방법 방식 "
    "режим реализация версия",
    "mixed precision": "混合精度",
    "half precision": "半精度",
    "single precision": "单精度",
    "data type": "数据类型",
    "precision": "精度",
    "accuracy": "准确率 正确率",
    "loss": "损失",
    "dataset": "数据集",
    "framework": "框架",
    "seed": "随机种子 种子",
    "version": "版本",
    "communication": "通信",
    "compute": "计算",
    "forward": "前向",
    "backward": "反向 后向",
    "optimizer": "优化器",
    "data loading": "数据加载",
    "bandwidth": "带宽",
    "node": "节点",
    "ideal": "理想",
    "theoretical": "理论",
    "expected": "预期 预计 期望",
    "target": "目标",
    "inference": "推理",
    "training": "训练",
    "valid": "验证集 验证",
    "test": "测试集 测试",
    "relative": "相对",
    "improvement": "提升 提高",
    "reduction": "下降 降低 节省 减少",
    "share": "占比 比例",
    "mean": "平均 평균 среднее",
    "peak": "峰值 最大 最高 ピーク",
    "least": "最小 最低",
    "global": "全局",
    "total": "总",
    "measured": "实际 实测",
    "per second": "每秒",
    "ms": "毫秒 мс",
    "us": "мкс",
    "ns": "нс",
    "s": "秒 초 секунды секунд сек с",
    "min": "分钟 분",
    "minutes": "мин минут минуты",
    "h": "小时 ч часов часа",
    "d": "天",
    "per gpu": "每张卡 每卡 单卡 每个gpu 每gpu 单gpu",
    "gpu": "卡",
    "": "的 张 块",
}
# In other European languages, in snake case and without accents.
EUROPEAN = {
    "execution_time": "tiempo_de_ejecucion tempo_de_execucao tempo_di_esecuzione temps_d_execution "
    "temps_execution temps_de_calcul temps_total tiempo_de_calculo tiempo_de_computo "
    "tempo_di_calcolo tempo_de_processamento tempo_gasto tempo_decorrido tiempo_transcurrido "
    "temps_ecoule laufzeit ausfuhrungszeit rechenzeit berechnungszeit gesamtzeit benotigte_zeit "
    "czas_wykonania thoi_gian_chay calisma_suresi",
    "training_time": "egitim_suresi",
    "mean_execution_time": "tiempo_medio_de_ejecucion tiempo_promedio_de_ejecucion "
    "tempo_medio_de_execucao tempo_medio_di_esecuzione temps_moyen_d_execution "
    "mittlere_laufzeit",
    "mean_time": "tiempo_promedio tiempo_medio tempo_medio temps_moyen povp_cas",
    "mean": "media moyenne mittelwert durchschnitt promedio",
    "std": "ecart_type standardabweichung desviacion_estandar desviacion_tipica desvio_padrao "
    "deviazione_standard",
    "in": "en em",
    "duration": "duree durata duracao duracion dauer",
    "time": "tiempo tiempos tempo_totale tempo tempos zeit zeiten czas thoi_gian "
    "toplam_sure sure suresi",
    "time_s": "tiempo_seg temps_s cas_s",  # CAS alone compares and swaps
    "step_time": "zeit_pro_schritt zeit_pro_zeitschritt zeit_pro_iteration temps_par_pas "
    "temps_par_pas_de_temps temps_par_iteration tiempo_por_paso tiempo_por_paso_de_tiempo "
    "tiempo_por_iteracion tempo_por_passo tempo_por_iteracao tempo_per_passo "
    "tempo_per_iterazione",
    "epoch_time": "zeit_pro_epoche temps_par_epoque tiempo_por_epoca tempo_por_epoca "
    "tempo_per_epoca",
    "time_ms": "temps_ms cas_ms",  # alone, these are temperatures
    "speedup": "aceleracion accelerazione aceleracao beschleunigung przyspieszenie tang_toc "
    "facteur_d_acceleration beschleunigungsfaktor hizlanma hizlandirma ganancia pospesek",
    "efficiency": "eficiencia efficienza efficacite effizienz efektywnosc hieu_suat verimlilik",
    "theoretical": "teorico teorica theorique theoretisch theoretische theoretischer",
    "parallel_time": "tempo_paralelo tiempo_paralelo tempo_parallelo temps_parallele",
    "serial_time": "tempo_sequencial tempo_serial tiempo_secuencial tiempo_serial "
    "tempo_sequenziale tempo_seriale temps_sequentiel",
    "parallel": "paralelo paralela parallelo parallele",
    "sequential": "sequentiell seriell sequencial secuencial sequenziale sequentielle sequentiel",
    "mode": "ausfuhrungsart ausfuhrung modo modalita",
    "implementation": "implementacija implementacion implementacao implementazione implementierung",
    "configuration": "configuracao configuracion configurazione konfiguration",
    "problem_size": "tamanho_do_problema tamano_del_problema dimensione_del_problema "
    "taille_du_probleme problemgrosse",
    "matrix_size": "tamanho_da_matriz tamano_de_la_matriz tamano_de_matriz dimensione_matrice "
    "dimensione_della_matrice taille_de_la_matrice matrixgrosse",
    "threads": "hilos watki watkow luong is_parcacigi is_parcaciklari",
    "core": "cekirdek",
    "cores": "nucleos kerne rechenkerne prozessorkerne coeurs cekirdekler",
    "process": "surec",
    "processes": "procesos processos processi processus prozesse procesy procesow procesi "
    "tien_trinh surecler",
    "processors": "procesadores processadores processori processeurs prozessoren",
    "nodes": "nodos nos nodi noeuds knoten rechenknoten wezly wezlow dugum dugumler",
    "count": "sayisi",
    "steps": "schritte zeitschritte iterationen pas_de_temps pasos passi passos iteraciones "
    "iteracoes iterazioni",
    "total": "gesamt insgesamt",
    "throughput": "durchsatz debit",
    "gpu_count": "gpu_anzahl",
    "cells": "zellen gitterzellen cellules celdas",
    "g": "mrd",
    "m": "mio",
    "for": "fur pour para",
    "time_for": "temps_pour",
    "used": "utilises utilizados utilizzati usados verwendet",
    "run": "execucao ejecucion esecuzione rodada corrida durchlauf",
    "repetition": "wiederholung repeticion repeticao ripetizione",
    "gpus_per_node": "gpus_pro_knoten gpus_par_noeud gpus_por_nodo gpus_por_no gpu_per_nodo",
    "runs": "execucoes ejecuciones esecuzioni rodadas corridas",
    "number_of_nodes": "knotenanzahl knotenzahl",
    "number_of_processes": "prozessanzahl prozesszahl",
    "number_of_threads": "threadanzahl threadzahl",
    "number_of_cores": "kernanzahl kernzahl",
    "number_of": "anzahl_der anzahl numero_de nombre_de numero_di numero n_de cantidad_de "
    "quantidade_de nb_de liczba so",
}


def by_word(words: Mapping[T, str]) -> dict[str, T]:
    """What each of the words stands for that are listed by it, the longest first."""
    meant = {word: meaning for meaning, several in words.items() for word in several.split()}
    return {word: meant[word] for word in sorted(meant, key=len, reverse=True)}


ENGLISH = {word.replace("_", " "): meant for word, meant in by_word(OTHER_SCRIPTS).items()}
KNOWN = re.compile(  # whole words where spaces part them
    "|".join(rf"\b{word}(?!\w)" if "а" <= word[0] <= "ё" else word for word in ENGLISH),
    re.IGNORECASE,
)
OF_EUROPE = by_word(EUROPEAN)
KNOWN_OF_EUROPE = re.compile(rf"(?<![^_])(?:{'|'.join(OF_EUROPE)})(?![^_])")
# Behind a number, as in "4进程效率" and "2分44秒", and not in "进程数".
COUNTED_AS = by_word(
    {
        "s": "秒 초",
        "min": "分钟 分 분",
        "h": "小时 時間 시간",
        "d": "天 日 일",
        "gpus": "卡",
        "processes": "进程 процесс процесса",
        "threads": "线程 поток потока",
        "cores": "核 ядро",
        "nodes": "节点 узел узла",
    }
)
COUNTED_WORDS = (  # threads, cores and cards in cells such as "2 hilos"
    "hilo hilos núcleo núcleos nucleo nucleos kern kerne поток потока потоков ядро ядра ядер "
    "线程 进程 核 卡 张 块 장 개 スレッド プロセス コア 스레드 프로세스 코어"
)
COUNTED = re.compile(rf"(?<=\d)\s*个?({'|'.join(COUNTED_AS)})(?![数數а-яё])")
NUMBER_OF = re.compile(r"(?<=\w)(?<!参)(?:数量|个数|数目|數量)")  # of 线程数量, not of 参数量
ONE_NODE, OF_NODES = re.compile(r"单机(?=\d+卡)"), re.compile(r"(\d+)机(\d+)卡")
ALONE = re.compile(r"单机单卡|单卡$")  # a number of ranks, and not a rate's "per GPU"
# Words in Chinese, Japanese, Korean and Cyrillic.
REST = re.compile(r"[\u0400-\u052f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]+")
ASIDE = re.compile(r"[(（][^()（）]*unknown[^()（）]*[)）]")


def in_english(text: str) -> str:
    """A text with the words of these scripts that are known in English, and others as "unknown";
    any other text as it is."""
    if text.isascii():
        return text
    text = OF_NODES.sub(r" \1 nodes x \2 gpus ", ONE_NODE.sub("", text))
    text = re.sub(r"每个\s*(?=gpu)", "每", ALONE.sub(" single gpu ", text), flags=re.IGNORECASE)
    text = re.sub(r"(?<=[gn]pu)\s+(?=[数數个個])", "", text, flags=re.IGNORECASE)
    text = NUMBER_OF.sub("数", text)
    text = COUNTED.sub(lambda match: f" {COUNTED_AS[match[1]]} ", text)
    text = KNOWN.sub(lambda match: f" {ENGLISH[match.group().lower()]} ", text)
    return ASIDE.sub("", REST.sub(" unknown ", text))


def from_european(name: str) -> str:
    """A name in snake case with the words that are known in English."""
    return KNOWN_OF_EUROPE.sub(lambda match: OF_EUROPE[match.group()], name)
