for(const table of document.querySelectorAll(".ranks")){
const heads=[...table.tHead.rows[0].cells],body=table.tBodies[0];
const sort=th=>{const i=th.cellIndex,up=th.getAttribute("aria-sort")!="ascending";
const key=r=>{const c=r.cells[i],v=c.dataset.v;return v===undefined?c.textContent:v===""?Infinity:+v};
for(const t of heads)t.removeAttribute("aria-sort");
th.setAttribute("aria-sort",up?"ascending":"descending");
body.append(...[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(x===y)return 0;if(x===Infinity||y===Infinity)return x===Infinity?1:-1;return(x<y?-1:1)*(up?1:-1)}))};
for(const th of heads){const button=document.createElement("button");button.type="button";
button.append(...th.childNodes);th.append(button);button.onclick=()=>sort(th)}}
