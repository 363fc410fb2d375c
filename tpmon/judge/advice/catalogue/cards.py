"""Remedies for the cards themselves: heat, power, clocks, the PCIe link, errors."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="cool-card",
        title="let card {card} breathe: fans, dust, neighbours, room temperature",
        applies="The card lowers its clocks because the chip or its memory is hot.",
        not_when="The reason is the power cap: that is normal under full load.",
        needs=(Need.CARD_HOT,),
        paste="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK -i {card}",
        language=Language.SHELL,
        ceiling="maximum clock / present clock",
        risk=Risk.NONE,
        proof="The thermal reason is no longer counted, the clock is back, and so are steps/s.",
    ),
    Remedy(
        id="lower-power-limit",
        title="lower the power limit a little until the heat is under control",
        applies="The card is hot, cooling cannot be changed today, and it swings between fast and slow.",
        not_when="Cooling can be fixed. It needs the operator's rights and lasts until the next reboot.",
        needs=(Need.CARD_HOT,),
        paste="sudo nvidia-smi -i {card} -pl WATTS  # 10 % below the limit, then look again",
        language=Language.SHELL,
        ceiling="the swings; the mean may rise by a few percent or fall",
        risk=Risk.NONE,
        proof="No thermal reason any more at the same or more samples/s.",
    ),
    Remedy(
        id="check-power-supply",
        title="have the power supply of card {card} checked",
        applies="The external power brake holds the card: the supply or the chassis says it cannot deliver.",
        not_when="A site-wide power cap is in force: ask first.",
        needs=(Need.CARD_BRAKED,),
        paste="nvidia-smi -q -d PERFORMANCE,POWER -i {card}",
        language=Language.SHELL,
        ceiling="often 2x and more: the brake halves the clocks at least",
        risk=Risk.NONE,
        proof="The brake reason is gone and the clock is back.",
    ),
    Remedy(
        id="reset-caps",
        title="take away the cap on card {card}'s clocks",
        applies="The clocks are held although neither heat nor the power limit explains it: somebody set "
        "them.",
        not_when="The cap is the operator's (power budget of the rack), or another job's choice on a shared "
        "card.",
        needs=(Need.CARD_CAPPED,),
        paste="nvidia-smi -q -d CLOCK,POWER,PERFORMANCE -i {card}  # then, as the operator:\n"
        "sudo nvidia-smi -i {card} -rgc; sudo nvidia-smi -i {card} -rac",
        language=Language.SHELL,
        ceiling="maximum clock / present clock",
        risk=Risk.NONE,
        proof="The clock under load is that of the other cards.",
    ),
    Remedy(
        id="check-card",
        title="have card {card} checked: something of its own holds its clocks",
        applies="The card's hardware, its board's limit or its reliability voltage lowers the clocks, and "
        "neither heat nor its power limit says why: nobody set that, so nobody can set it back.",
        not_when="The reason comes and goes within seconds at full load: then the clock is hardly lower.",
        needs=(Need.CARD_SICK,),
        paste="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i {card}",
        language=Language.SHELL,
        ceiling="maximum clock / present clock",
        risk=Risk.NONE,
        proof="The reason is no longer counted, and the clock under load is that of the other cards.",
    ),
    Remedy(
        id="limit-above-card",
        title="ask what limits the power above card {card}: its module, its rack",
        applies="A power cap lowers the clock although the card is far below its own limit.",
        not_when="The cap is meant (power budget of the rack), or the card shares its limit with a CPU that "
        "works (modules such as GH200): then less work on that CPU leaves it more.",
        needs=(Need.CARD_CAPPED_ABOVE,),
        paste="nvidia-smi -q -d POWER,PERFORMANCE,CLOCK -i {card}",
        language=Language.SHELL,
        ceiling="maximum clock / present clock",
        risk=Risk.NONE,
        proof="The power of the card under load comes near its own limit.",
    ),
    Remedy(
        id="reseat-card",
        title="have card {card} reseated: its PCIe link is too slow",
        applies="Under load the link runs with fewer lanes or a lower generation than card and slot can.",
        not_when="The card idles: it then lowers its generation to save power. Some slots are wired with "
        "fewer lanes.",
        needs=(Need.LINK_DOWN,),
        paste="nvidia-smi -i {card} --query-gpu=pcie.link.gen.current,pcie.link.gen.max,"
        "pcie.link.width.current,pcie.link.width.max --format=csv  # under load",
        language=Language.SHELL,
        ceiling="maximum over present link speed, for the share of the step that copies over PCIe",
        risk=Risk.NONE,
        proof="Width and generation are at their maximum under load.",
    ),
    Remedy(
        id="retire-card",
        title="save a checkpoint, then have card {card} reset or replaced",
        applies="The card reports uncorrected memory errors, a failed row remapping, or an Xid that "
        "wants a reset.",
        not_when="The Xid is 13, 31 or 43: those are mostly faults of the program.",
        needs=(Need.CARD_ERRORS,),
        paste="nvidia-smi -q -d ECC,ROW_REMAPPER -i {card}; sudo dmesg -T | grep -i xid",
        language=Language.SHELL,
        ceiling="none in speed; it saves the run",
        risk=Risk.NONE,
        proof="Error counters stay at zero after the reset.",
    ),
    Remedy(
        id="avoid-card",
        title="leave card {card} out, or swap its rank with another",
        applies="One card of the job is slower than the others at the same work, and all wait for it.",
        not_when="The slowness follows the rank when ranks are swapped: then it is the data or the host.",
        needs=(Need.CARD_BEHIND,),
        paste="nvidia-smi --query-gpu=index,clocks.sm,power.draw,temperature.gpu --format=csv -l 2",
        language=Language.SHELL,
        ceiling="median clock / clock of this card",
        risk=Risk.NONE,
        proof="The ranks' waits become equal and samples/s rise.",
    ),
)
