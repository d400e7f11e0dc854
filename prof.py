import sys; sys.path[:0]=['benchmarks']
import torch, time
from llama_prompts import *
from legato.decoding import SearchOptions
write=legato_side(SHAPES['1b'])
p=prompts_of(64,202,1); write(p,1); write(p,192); write(p,64)
a=time.perf_counter(); write(p,192); b=time.perf_counter(); write(p,64); c=time.perf_counter(); print('step', ((b-a)-(c-b))/128*1e3)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
    write(p,192); torch.cuda.synchronize()
ev=sorted([e for e in prof.events() if str(e.device_type).endswith('CUDA')], key=lambda e:e.time_range.start)
n=len(ev)*3//4
# one step: from one scan_logits to the next
idx=[i for i,e in enumerate(ev) if e.name.startswith('scan_logits')]
i,j=idx[-20],idx[-19]
print('one step us', ev[j].time_range.start-ev[i].time_range.start, 'kernels', j-i)
prev=None
import collections
agg=collections.OrderedDict()
for e in ev[i:j]:
    k=e.name[:60]; agg.setdefault(k,[0,0]); agg[k][0]+=e.time_range.elapsed_us(); agg[k][1]+=1
for k,(t,c) in sorted(agg.items(), key=lambda x:-x[1][0]): print('  %7.1f us %4d %s'%(t,c,k))
print('busy', sum(t for t,_ in agg.values()))
for e in ev[i:i+26]: print('   %9.1f +%6.1f %s'%(e.time_range.start-ev[i].time_range.start, e.time_range.elapsed_us(), e.name[:50]))
