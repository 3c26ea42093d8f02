for(const table of document.querySelectorAll(".ranks"))table.tHead.onclick=e=>{
const th=e.target.closest("th"),body=table.tBodies[0],i=th.cellIndex,up=th.getAttribute("aria-sort")!="ascending";
const key=r=>{const c=r.cells[i],v=c.dataset.v;return v===undefined?c.textContent:v===""?Infinity:+v};
for(const t of table.tHead.rows[0].cells)t.removeAttribute("aria-sort");
th.setAttribute("aria-sort",up?"ascending":"descending");
body.append(...[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(x===y)return 0;if(x===Infinity||y===Infinity)return x===Infinity?1:-1;return(x<y?-1:1)*(up?1:-1)}))};
